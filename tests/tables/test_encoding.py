import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from pinfactory.tables import Encoding, as_frame, read_frame


@pytest.fixture(scope="module")
def frame():
    """Every kind of column, with rare levels, gaps, and columns that say nothing."""
    n = 40
    days = np.datetime64("2023-01-01T06:00", "us") + np.arange(n) * np.timedelta64(31, "D")
    return pd.DataFrame(
        {
            "area": [np.nan if i % 8 == 0 else 10.0 + i for i in range(n)],
            "garden": [i % 3 == 0 for i in range(n)],
            "street": ["A", "B", "C", "C"] * 9 + ["rare", "rarer", "rarest", "one more"],
            "heating": ["gas", "oil"] * (n // 2),
            "sold": days,
            "key": [f"id{i}" for i in range(n)],
            "same": ["x"] * n,
        }
    )


def names_of(encoding):
    return [feature.name for feature in encoding.features]


def test_every_column_becomes_the_numbers_it_says(frame):
    encoding = Encoding.learn(frame)
    numbers = dict(zip(names_of(encoding), encoding.transform(frame).T, strict=True))
    known = frame["area"].dropna()
    np.testing.assert_array_equal(numbers["area"], frame["area"].fillna(known.median()))
    np.testing.assert_array_equal(numbers["area = (missing)"], frame["area"].isna())
    np.testing.assert_array_equal(numbers["garden"], frame["garden"])
    np.testing.assert_array_equal(numbers["street = C"], frame["street"] == "C")
    np.testing.assert_array_equal(numbers["street = (other)"], ~frame["street"].isin(list("ABC")))
    # Two categories need one number.
    np.testing.assert_array_equal(numbers["heating = oil"], frame["heating"] == "oil")
    assert "heating = gas" not in numbers
    year = frame["sold"].dt.year + (frame["sold"].dt.day_of_year - 0.75) / np.where(
        frame["sold"].dt.is_leap_year, 366, 365
    )
    np.testing.assert_allclose(numbers["sold (year)"], year)
    np.testing.assert_array_equal(
        numbers["sold (weekday) = Sun"], frame["sold"].dt.day_of_week == 6
    )
    assert not any(name.startswith(("key", "same", "sold (hour)")) for name in numbers)
    told = {name: done for name, _, done in encoding.table()}
    assert told["area"] == "5 missing set to 30, with an indicator"
    assert told["street"] == "3 categories, 4 rare: grouped as (other)"
    assert told["key"] == "left out: nearly every row has another value"
    assert told["same"] == "left out: hardly any row differs"


def test_pandas_polars_and_arrow_are_the_same(frame):
    encoding = Encoding.learn(frame)
    expected = encoding.transform(frame)
    categorical = frame.astype({"street": "category", "heating": "category"})
    shuffled = frame[list(frame.columns[::-1])].assign(extra=1)
    for other in (pl.from_pandas(frame), pa.Table.from_pandas(frame), categorical, shuffled):
        np.testing.assert_array_equal(encoding.transform(other), expected)
    for other in (pl.from_pandas(frame), pa.Table.from_pandas(frame)):
        assert Encoding.learn(other) == encoding


def test_what_was_not_seen_is_taken_as_average_and_named(frame):
    encoding = Encoding.learn(frame[["garden", "heating", "street"]])
    new = frame[["garden", "heating", "street"]].head(2).astype(object)
    new.loc[0] = [None, "coal", "unknown"]
    with pytest.warns(UserWarning, match="'coal' in column 'heating'") as warned:
        numbers = encoding.transform(new)[0]
    assert "missing values in column 'garden'" in str(warned[0].message)
    assert "street" not in str(warned[0].message)
    gaps = new.assign(garden=None, heating=None)
    with pytest.warns(UserWarning, match="missing values in columns 'garden', 'heating'"):
        encoding.transform(gaps)
    named = dict(zip(names_of(encoding), numbers, strict=True))
    assert named["garden"] == frame["garden"].mean()
    assert named["heating = oil"] == 0.5
    assert named["street = (other)"] == 1.0
    with pytest.raises(ValueError, match="lacks 'heating', 'street'"):
        encoding.transform(frame[["garden"]])
    with pytest.raises(
        ValueError, match="column 'garden' must hold booleans, as in fit, but 'maybe' is none"
    ):
        encoding.transform(new.assign(garden=["maybe", "not"]))


def test_columns_that_cannot_be_used_are_refused_by_name(frame):
    with pytest.raises(ValueError, match="column 'lists' must hold numbers"):
        Encoding.learn(pl.DataFrame({"lists": [[1], [2]]}))
    with pytest.raises(ValueError, match="column 'far' must hold finite numbers"):
        Encoding.learn(pd.DataFrame({"far": [1.0, np.inf]}))
    with pytest.raises(ValueError, match="no column tells rows apart"):
        Encoding.learn(frame[["key"]])
    with pytest.raises(ValueError, match="a name of its own"):
        as_frame(pd.DataFrame(np.ones((2, 2)), columns=["a", "a"]))
    assert as_frame(pd.DataFrame(np.ones((2, 2)))) is None
    assert as_frame(np.ones((2, 2))) is None


def test_an_encoding_goes_through_plain_values(frame):
    encoding = Encoding.learn(frame)
    assert Encoding.from_plain(encoding.to_plain()) == encoding
    # Files that were written before text could be read as numbers.
    earlier = [
        {k: v for k, v in column.items() if k != "written"} for column in encoding.to_plain()
    ]
    assert Encoding.from_plain(earlier) == encoding
    plain = encoding.to_plain()
    for name, wrong in (("kind", "code"), ("levels", ["A"]), ("fill", "0"), ("low", float("nan"))):
        with pytest.raises(ValueError, match=r"column|number"):
            Encoding.from_plain([plain[0] | {name: wrong}])
    with pytest.raises(ValueError, match="fields of a column"):
        Encoding.from_plain([{"name": "a"}])


def test_files_are_read_with_dates_and_without_row_numbers(frame, tmp_path):
    frame.to_csv(tmp_path / "a.csv")
    frame.to_parquet(tmp_path / "a.parquet")
    expected = Encoding.learn(frame)
    for name in ("a.csv", "a.parquet"):
        read = read_frame(tmp_path / name)
        assert list(read.columns) == list(frame.columns)
        np.testing.assert_allclose(expected.transform(read), expected.transform(frame))
    dated = pd.DataFrame({"day": ["2024-02-30", "2024-01-01"]})
    dated.to_csv(tmp_path / "b.csv", index=False)
    assert read_frame(tmp_path / "b.csv")["day"].tolist() == dated["day"].tolist()
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.csv"):
        read_frame(tmp_path / "none.csv")
    (tmp_path / "a.doc").touch()
    with pytest.raises(ValueError, match=r"must end in \.csv"):
        read_frame(tmp_path / "a.doc")
    (tmp_path / "empty.csv").touch()
    with pytest.raises(ValueError, match="no table of comma-separated values"):
        read_frame(tmp_path / "empty.csv")


def test_dates_of_a_time_zone_and_plain_dates():
    day = [datetime.date(2024, 1, 1) + datetime.timedelta(days=i) for i in range(30)]
    encoding = Encoding.learn(pl.DataFrame({"day": day}))
    assert {c.part for c in encoding.columns} == {"year", "weekday"}
    moments = pd.date_range("2024-01-01", periods=30, freq="7h", tz="Asia/Tokyo")
    hours = Encoding.learn(pd.DataFrame({"at": moments}))
    numbers = hours.transform(pd.DataFrame({"at": moments})).T
    named = dict(zip(names_of(hours), numbers, strict=True))
    np.testing.assert_array_equal(named["at (hour)"], moments.hour)


def test_times_of_another_zone_are_converted_or_refused():
    moments = pd.Series(pd.date_range("2024-01-01", periods=30, freq="7h", tz="Asia/Tokyo"))
    frame = pd.DataFrame({"at": moments})
    encoding = Encoding.learn(frame)
    numbers = encoding.transform(frame)
    abroad = pd.DataFrame({"at": moments.dt.tz_convert("UTC")})
    np.testing.assert_array_equal(encoding.transform(abroad), numbers)
    np.testing.assert_array_equal(encoding.transform(pl.from_pandas(abroad)), numbers)
    plain = pd.DataFrame({"at": moments.dt.tz_localize(None)})
    with pytest.raises(ValueError, match="column 'at' must have times of Asia/Tokyo, as in fit"):
        encoding.transform(plain)
    with pytest.raises(ValueError, match="must have times of no zone, as in fit, but has those of"):
        Encoding.learn(plain).transform(frame)
    # The same in objects of Python, as wall clock.
    objects = pd.DataFrame({"at": pd.Series(list(moments.dt.to_pydatetime()), dtype=object)})
    assert Encoding.learn(objects) == encoding
    np.testing.assert_array_equal(encoding.transform(objects), numbers)
    objects.loc[0, "at"] = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    with pytest.raises(ValueError, match="column 'at' must have one time zone, but has Asia/Tokyo"):
        Encoding.learn(objects)


def test_dates_may_be_missing_or_text_later_but_no_numbers():
    days = pd.Series(pd.date_range("2024-01-01", periods=40)).where(np.arange(40) % 8 > 0)
    frame = pd.DataFrame({"day": days})
    encoding = Encoding.learn(frame)
    numbers = encoding.transform(frame)  # a warning would be an error
    text = frame.assign(day=days.dt.strftime("%Y-%m-%d"))
    np.testing.assert_array_equal(encoding.transform(text), numbers)
    for wrong in (20240101, "soon"):
        with pytest.raises(ValueError, match="column 'day' must hold dates"):
            encoding.transform(frame.assign(day=wrong))


DAY_FIRST, MONTH_FIRST = "day/month/year", "month/day/year"


@pytest.mark.parametrize(
    ("form", "order"),
    [
        ("%Y-%m-%d", "year-month-day"),
        ("%Y/%m/%d %H:%M:%S", "year-month-day"),
        ("%m/%d/%Y %H:%M", MONTH_FIRST),
        ("%m/%d/%y %I:%M %p", MONTH_FIRST),
        ("%d.%m.%Y", DAY_FIRST),
        ("%d-%m-%y", DAY_FIRST),
    ],
)
@pytest.mark.parametrize("library", [pd, pl])
def test_text_in_which_all_agree_on_one_order_is_dates(library, form, order):
    days = pd.Series(pd.date_range("1994-07-19 06:05", periods=60, freq="31h"))
    days = days if "%M" in form else days.dt.normalize()
    text = [None, *days.dt.strftime(form)[1:]]
    encoding = Encoding.learn(library.DataFrame({"day": text}))
    assert encoding.columns[0].done().startswith(f"of text, {order}")
    expected = pd.DataFrame({"day": days.where(days.index > 0)})
    numbers = encoding.transform(library.DataFrame({"day": text}))
    np.testing.assert_allclose(numbers, Encoding.learn(expected).transform(expected))
    # A row alone does not tell its order, which is that of fit; the year may come first.
    alone = encoding.transform(library.DataFrame({"day": [days.dt.strftime(form)[20]]}))
    np.testing.assert_allclose(alone, numbers[20:21])
    np.testing.assert_allclose(encoding.transform(pd.DataFrame({"day": days[20:21]})), alone)
    with pytest.raises(
        ValueError, match=f"'day' must hold dates.*'31/31/1994', which is no {order}"
    ):
        encoding.transform(library.DataFrame({"day": ["31/31/1994"]}))


def test_dates_whose_order_cannot_be_told_are_text_and_named():
    text = [f"{day:02}.{month:02}.2024" for month in range(1, 13) for day in range(1, 13)]
    either = f"{MONTH_FIRST} or {DAY_FIRST} cannot be told"
    with pytest.warns(UserWarning, match=f"column 'sold' has dates, but {either}, so that it is"):
        encoding = Encoding.learn(pd.DataFrame({"sold": text, "x": range(144)}))
    assert encoding.columns[0].done() == f"left out: {either}"
    # 30 February is no date in any order, and 10.0.3.1 is none.
    for wrong in ("30/2/2024", "10.0.3.1", "3/4/2024 25:00"):
        learned = Encoding.learn(pd.DataFrame({"day": ["13/1/2024", "20/1/2024", wrong] * 9}))
        assert learned.columns[0].kind == "category"


@pytest.mark.parametrize(
    ("words", "written", "numbers"),
    [
        (["$1,234.50", "-$7", "$ 12,000"], "$1,234.5", [1234.5, -7, 12000]),
        (["12 %", "3.5%", "100%"], "1,234.5%", [12, 3.5, 100]),
        (["1.234,50 €", "0,99 €", "7 €"], "1.234,5€", [1234.5, 0.99, 7]),
        (["1,234", "567", "12,345,678"], "1,234.5", [1234, 567, 12345678]),
        (["1\u202f234,5", "12,25", "1"], "1.234,5", [1234.5, 12.25, 1]),
    ],
)
def test_numbers_with_signs_and_marks_are_numbers_if_all_are_written_alike(words, written, numbers):
    frame = pd.DataFrame({"pay": [*words * 20, None], "x": np.arange(61.0)})
    encoding = Encoding.learn(frame)
    assert encoding.columns[0].done().startswith(f"of text, written as {written}")
    for same in (frame, pl.from_pandas(frame)):
        np.testing.assert_array_equal(encoding.transform(same)[:60, 0], numbers * 20)
    np.testing.assert_array_equal(encoding.transform(frame[:3].assign(pay=numbers))[:, 0], numbers)
    with pytest.raises(ValueError, match="column 'pay' must hold numbers, as in fit, but '12 kg'"):
        encoding.transform(frame.assign(pay="12 kg"))


@pytest.mark.parametrize(
    "words",
    [
        ["12345", "02134", "99999"],  # digits made text on purpose, such as postal codes
        ["$5", "€5", "$6"],
        ["5 %", "5", "6"],
        ["A12", "A13", "B7"],
        ["10-20", "20-30", "30-40"],
    ],
)
def test_text_that_is_no_number_or_has_several_units_stays_a_category(words):
    assert Encoding.learn(pd.DataFrame({"a": words * 20})).columns[0].kind == "category"


def test_numbers_whose_marks_cannot_be_told_are_text_and_named():
    either = "1,234.5 or 1.234,5 cannot be told"
    frame = pd.DataFrame({"size": ["1,234", "5,678", "9,125"] * 20})
    with pytest.warns(UserWarning, match=f"column 'size' has numbers, but {either}"):
        assert Encoding.learn(frame).columns[0].kind == "category"


def test_a_level_that_was_rare_in_fit_is_no_news():
    frame = pd.DataFrame({"town": ["Ayr", "Bath"] * 30 + ["Cork"]})
    for keep_gaps in (False, True):
        Encoding.learn(frame, keep_gaps=keep_gaps).transform(frame)


def test_objects_are_taken_for_what_they_hold():
    random = np.random.default_rng(0)
    number = random.integers(0, 900, 60)
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(days=int(k)) for k in number]
    typed = pd.DataFrame({"number": number / 4, "day": pd.to_datetime(days)})
    typed.loc[0, "number"] = np.nan
    objects = {
        "number": [None, *(Decimal(int(k)) / 4 for k in number[1:])],
        "day": days,
    }
    objects = pd.DataFrame({n: pd.Series(v, dtype=object) for n, v in objects.items()})
    encoding = Encoding.learn(objects)
    assert encoding == Encoding.learn(typed)
    np.testing.assert_array_equal(encoding.transform(objects), encoding.transform(typed))


def test_sparse_columns_hold_numbers():
    number = np.r_[np.zeros(20), np.arange(20.0)]
    frame = pd.DataFrame({"a": number})
    sparse = pd.DataFrame({"a": pd.arrays.SparseArray(number, fill_value=0.0)})
    encoding = Encoding.learn(sparse)
    assert encoding == Encoding.learn(frame)
    np.testing.assert_array_equal(encoding.transform(sparse), number[:, None])


def test_a_level_with_the_name_of_the_others_is_one_of_them():
    kind = ["a"] * 40 + ["b"] * 40 + ["(other)"] * 15 + ["c", "d"]
    encoding = Encoding.learn(frame := pd.DataFrame({"kind": kind}))
    numbers = encoding.transform(frame)
    np.testing.assert_array_equal(numbers.sum(axis=1), 1.0)
    np.testing.assert_array_equal(numbers.sum(axis=0), [40, 40, 17])


def test_numbered_categories_are_known_again_where_a_gap_made_them_fractions():
    kind = pd.Series(["1", "2", "3"] * 20).astype(int)
    encoding = Encoding.learn(pd.DataFrame({"kind": pd.Categorical(kind)}))
    fractions = pd.DataFrame({"kind": kind.astype(float)})
    np.testing.assert_array_equal(encoding.transform(fractions), np.tile(np.eye(3), (20, 1)))
    halves = Encoding.learn(pd.DataFrame({"kind": pd.Categorical(kind / 2)}))
    assert set(halves.columns[0].levels) == {"0.5", "1", "1.5"}


def test_columns_that_say_nothing_or_count_days_are_told_as_such():
    n = 30
    frame = pd.DataFrame(
        {
            "nothing": [None] * n,
            "no number": np.full(n, np.nan),
            "constant": np.ones(n),
            "waited": pd.to_timedelta(np.arange(n), unit="h"),
            "income": np.where(np.arange(n) < 3, np.nan, 15_000.0),
        }
    )
    told = {name: done for name, _, done in Encoding.learn(frame).table()}
    assert told == {
        "nothing": "left out: no value in any row",
        "no number": "left out: no value in any row",
        "constant": "the same in all rows",
        "waited": "in days, as it is",
        "income": "3 missing set to 15,000, with an indicator",
    }


def test_a_table_without_rows_has_no_numbers_and_a_lazy_one_is_refused(frame):
    encoding = Encoding.learn(frame)
    assert encoding.transform(frame[:0]).shape == (0, len(encoding.features))
    with pytest.raises(TypeError, match=r"pass frame.collect\(\)"):
        as_frame(pl.LazyFrame({"a": [1]}))
    with pytest.raises(ValueError, match=r"but 1 holds String: try X.columns"):
        as_frame(pd.DataFrame({0: [1.0], 1: ["a"]}))
