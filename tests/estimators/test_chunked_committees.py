"""Committees of rows that need not fit into memory."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from pinfactory import SpecialistClassifier, SpecialistRegressor
from pinfactory.estimators import chunked, drawn
from pinfactory.estimators.chunked import LocalChunks, with_targets
from pinfactory.persistence import MismatchError

pytest.importorskip("pyarrow", reason="pip install 'pinfactory[large]'")
pytest.importorskip("dask", reason="pip install 'pinfactory[large]'")

N = 6000
SETTINGS = {"n_experts": 2, "max_iter": 200, "n_init": 1, "random_state": 0}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3))
    return x, np.abs(x[:, 0]) + 0.3 * x[:, 1] + 0.1 * rng.normal(size=N)


@pytest.fixture(scope="module")
def frame(table):
    """Numbers, categories, dates and missing values."""
    rng = np.random.default_rng(1)
    x, y = table
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    frame["town"] = pd.Categorical(rng.choice(["Ayr", "Bath", "Cork"], N))
    frame["day"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 600, N), unit="D")
    frame["y"] = y + (frame["town"] == "Bath")
    frame.loc[::20, "b"] = np.nan
    frame.loc[::30, "town"] = None
    return frame


@pytest.fixture
def mapped_always(monkeypatch):
    monkeypatch.setattr(chunked, "MAPPED_BYTES", 0)
    monkeypatch.setattr(chunked, "CHUNK", 1000)


@pytest.fixture
def small(mapped_always, monkeypatch):
    """A quarter of the rows fits into memory."""
    monkeypatch.setattr(drawn, "MOST_ROWS", N // 4)


def mapped(x, y, folder):
    np.save(folder / "x.npy", x)
    return np.load(folder / "x.npy", mmap_mode="r"), y


def dask_array(x, y, folder):
    import dask.array as da

    return da.from_array(x, chunks=(1000, 2)), da.from_array(y, chunks=700)


def in_parts(x, y, length=900):
    return ((x[i : i + length], y[i : i + length]) for i in range(0, len(x), length))


def pairs(x, y, folder):
    return LocalChunks(x[:5], lambda: in_parts(x, y)), None


def parquet(frame, folder, rows=900):
    frame.to_parquet(folder / f"{rows}.parquet", row_group_size=rows)
    return folder / f"{rows}.parquet", "y"


def arrow(frame, folder):
    from pyarrow import dataset

    return dataset.dataset(parquet(frame, folder)[0]), "y"


def dask_frame(frame, folder):
    import dask.dataframe as dd

    frame = dd.from_pandas(frame, npartitions=5)
    # One partition is empty, as after a filter.
    return dd.concat([frame, frame[frame["a"] > 1e9]]), "y"


def dask_series(frame, folder):
    import dask.dataframe as dd

    frame = dd.from_pandas(frame, npartitions=5)
    return frame.drop(columns="y"), frame["y"]


@pytest.fixture(scope="module")
def of_table(table):
    return SpecialistRegressor(**SETTINGS).fit(*table)


@pytest.fixture(scope="module")
def of_frame(frame):
    return SpecialistRegressor(**SETTINGS).fit(frame.drop(columns="y"), frame["y"])


@pytest.mark.parametrize("kind", [mapped, dask_array, pairs])
def test_arrays_that_fit_are_learned_as_in_memory(kind, table, of_table, mapped_always, tmp_path):
    known = of_table
    X, y = kind(*table, tmp_path)
    committee = SpecialistRegressor(**SETTINGS).fit(X, y)
    np.testing.assert_array_equal(committee.predict(table[0]), known.predict(table[0]))
    if kind is not pairs:
        # Blocks of other lengths are rounded otherwise.
        np.testing.assert_allclose(committee.predict(X), known.predict(table[0]), atol=1e-6)
    assert committee.score(X, y) == pytest.approx(known.score(*table), abs=1e-6)


@pytest.mark.parametrize("kind", [parquet, arrow, dask_frame, dask_series])
def test_frames_that_fit_are_learned_as_in_memory(kind, frame, of_frame, tmp_path):
    rows, known = frame.drop(columns="y"), of_frame
    X, y = kind(frame, tmp_path)
    committee = SpecialistRegressor(**SETTINGS).fit(X, y)
    np.testing.assert_array_equal(committee.predict(rows), known.predict(rows))
    assert str(committee.rules()) == str(known.rules())
    assert committee.target_name_ == known.target_name_ == "y"
    # Other columns than those of `fit` are left out, as "y" is here.
    np.testing.assert_allclose(committee.predict(X), known.predict(rows), atol=1e-6)
    assert committee.score(X, y) == pytest.approx(known.score(rows, frame["y"]), abs=1e-6)


def test_a_classifier_of_chunks_is_that_in_memory(frame, tmp_path):
    rows, labels = frame.drop(columns="y"), np.where(frame["y"] > 1, "high", "low")
    known = SpecialistClassifier(**SETTINGS).fit(rows, labels)
    path, _ = parquet(rows.assign(y=labels), tmp_path)
    committee = SpecialistClassifier(**SETTINGS).fit(path, "y")
    assert committee.classes_.tolist() == ["high", "low"]
    answers = committee.predict_proba(path)
    np.testing.assert_allclose(answers, known.predict_proba(rows), atol=1e-6)
    assert committee.score(path, "y") == known.score(rows, labels)


def test_what_is_learned_does_not_depend_on_how_rows_are_cut(frame, small, tmp_path):
    known, other = (
        SpecialistRegressor(**SETTINGS).fit(*parquet(frame, tmp_path, rows)) for rows in (700, 2500)
    )
    rows = frame.drop(columns="y")
    np.testing.assert_array_equal(known.predict(rows), other.predict(rows))
    assert known.information_.selector == pytest.approx(other.information_.selector, rel=1e-6)
    assert known.n_iter_ > SETTINGS["max_iter"]
    assert known.score(rows, frame["y"]) > 0.95


def test_the_sample_does_not_depend_on_the_order_of_rows(frame, small):
    def sample(frame):
        rows = frame.drop(columns="y")
        chunks = LocalChunks(rows[:5], lambda: in_parts(rows, frame["y"]))
        found = drawn.draw(chunked.with_targets(chunks, None), classify=False)
        assert found.n == N
        return found.rows

    one, other = sample(frame), sample(frame.sample(frac=1.0, random_state=0))
    pd.testing.assert_frame_equal(one.X, other.X)
    np.testing.assert_array_equal(one.y, other.y)
    assert len(one) == N // 4
    # Uniform: the mean of the sample is that of all rows, but for its standard error.
    assert abs(one.X["a"].mean() - frame["a"].mean()) < 4 / np.sqrt(N // 4)


def test_equal_rows_are_drawn_as_often_as_they_are_there(small):
    x = np.repeat([[0.0], [1.0]], [N - 600, 600], axis=0)
    chunks = LocalChunks(x[:5], lambda: in_parts(x, x[:, 0], 500))
    found = drawn.draw(chunked.with_targets(chunks, None), classify=False)
    # Each of 12 chunks has 500 of them, of which a quarter is drawn.
    assert found.rows.y.mean() == pytest.approx(0.1, abs=0.03)


def test_rows_beyond_the_sample_are_learned_from(monkeypatch, mapped_always, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 20))
    y = np.abs(x[:, 0]) + x @ rng.normal(size=20) / 4 + 0.5 * rng.normal(size=N)
    settings = {**SETTINGS, "start": "tree"}
    held_out = slice(N // 2, N)
    monkeypatch.setattr(drawn, "MOST_ROWS", 200)
    source = mapped(x[: N // 2], y[: N // 2], tmp_path)
    committee = SpecialistRegressor(**settings).fit(*source)
    sample = drawn.draw(chunked.with_targets(*source), classify=False).rows
    alone = SpecialistRegressor(**settings).fit(sample.X, sample.y)
    assert committee.score(x[held_out], y[held_out]) > alone.score(x[held_out], y[held_out]) + 0.01


def test_nothing_is_kept_that_is_worse_on_rows_held_out(table, small):
    x, y = table
    rng, reads = np.random.default_rng(0), []

    def read():
        reads.append(None)
        # All but the first pass have targets that tell nothing.
        return in_parts(x, y if len(reads) == 1 else rng.permutation(y))

    committee = SpecialistRegressor(**SETTINGS).fit(LocalChunks(x[:5], read), None)
    assert committee.n_iter_ > SETTINGS["max_iter"]
    assert len(reads) > 1
    assert committee.score(x, y) > 0.95


@pytest.mark.parametrize("weight", [None, "balanced"])
def test_no_class_is_lost(weight, table, small, tmp_path):
    x, y = table
    labels = np.where(y > 0.7, "high", "low").astype(object)
    # Three rows of 6,000, all in one chunk; the sample alone would have one of them, or none.
    rare = [4000, 4001, 4002]
    labels[rare] = "rare"
    x = x.copy()
    x[rare] = [[0.0, 0.0, 8.0], [0.1, 0.0, 8.0], [0.0, 0.1, 8.0]]
    settings = {**SETTINGS, "class_weight": weight, "standardise": False}
    committee = SpecialistClassifier(**settings).fit(*mapped(x, labels, tmp_path))
    known = SpecialistClassifier(**settings).fit(x, labels)
    assert committee.classes_.tolist() == ["high", "low", "rare"]
    share = committee.predict_proba(x).mean(axis=0)
    np.testing.assert_allclose(share, known.predict_proba(x).mean(axis=0), atol=0.03)


def test_squared_errors_and_bits_are_those_of_all_rows(table, small, tmp_path):
    settings = {**SETTINGS, "utility": "squared_error"}
    committee = SpecialistRegressor(**settings).fit(*mapped(*table, tmp_path))
    x, y = table
    share = committee.responsibilities(x)
    answers = np.column_stack([committee.expert_predict(x, m) for m in range(2)])
    error = np.sqrt((share * (answers - y[:, None]) ** 2).sum(axis=0) / share.sum(axis=0))
    np.testing.assert_allclose(committee.noise_[:, 0], error, rtol=1e-3)
    np.testing.assert_allclose(committee.information_.responsibility, share.mean(axis=0), atol=1e-4)


class Failure(Exception):
    pass


def test_a_fit_goes_on_from_a_checkpoint_in_the_middle_of_the_rows(frame, small, tmp_path):
    source = parquet(frame, tmp_path)
    known = SpecialistRegressor(**SETTINGS).fit(*source)

    def fail(progress):
        if progress.step > SETTINGS["max_iter"] + 40:
            raise Failure

    for stop in (fail, None):
        committee = SpecialistRegressor(**SETTINGS)
        if stop is not None:
            with pytest.raises(Failure):
                committee.fit(*source, callbacks=stop, checkpoint=tmp_path / "state")
        else:
            committee.fit(*source, checkpoint=tmp_path / "state")
    rows = frame.drop(columns="y")
    np.testing.assert_array_equal(committee.predict(rows), known.predict(rows))


def test_a_checkpoint_of_other_rows_is_refused_even_if_the_sample_is_the_same(
    frame, small, tmp_path
):
    source = parquet(frame, tmp_path)

    def fail(progress):
        if progress.step > SETTINGS["max_iter"] + 40:
            raise Failure

    with pytest.raises(Failure):
        SpecialistRegressor(**SETTINGS).fit(*source, callbacks=fail, checkpoint=tmp_path / "state")

    def sampled(source):
        return drawn.draw(with_targets(*source), classify=False).rows.X["a"].to_numpy()

    sample = sampled(source)
    for column in ("c", "y"):
        for row in np.flatnonzero(~frame["a"].isin(sample)):
            other = frame.copy()
            other.loc[row, column] += 1e-3
            changed = parquet(other, tmp_path)
            if np.array_equal(sampled(changed), sample):
                break
        with pytest.raises(MismatchError, match="it belongs to all_rows"):
            SpecialistRegressor(**SETTINGS).fit(*changed, checkpoint=tmp_path / "state")


def test_ctrl_c_keeps_what_was_learned(frame, small, tmp_path):
    def stop(progress):
        if progress.step > SETTINGS["max_iter"]:
            raise KeyboardInterrupt

    committee = SpecialistRegressor(**SETTINGS)
    with pytest.warns(UserWarning, match="is kept"), pytest.raises(KeyboardInterrupt):
        committee.fit(*parquet(frame, tmp_path), callbacks=stop)
    assert committee.score(frame.drop(columns="y"), frame["y"]) > 0.9


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ("prize", "must name columns of X"),
        (None, "must be the name of a column"),
        (np.zeros(N), "must be the name of a column"),
        ("b", "must have no missing values"),
    ],
)
def test_targets_that_files_do_not_have_are_refused(y, message, frame, tmp_path):
    with pytest.raises(ValueError, match=message):
        SpecialistRegressor(2).fit(parquet(frame, tmp_path)[0], y)


def test_labels_of_a_mapped_array_may_be_a_list_of_text(table, mapped_always, tmp_path):
    labels = np.where(table[1] > 0.7, "high", "low").tolist()
    parts = with_targets(*mapped(table[0], labels, tmp_path)).read()
    assert np.concatenate([part.y for part in parts]).tolist() == labels


def test_what_chunks_do_not_offer_is_refused(table, frame, mapped_always, tmp_path):
    x, y = table
    with pytest.raises(ValueError, match="`sample_weight` must be None"):
        SpecialistRegressor(2).fit(*mapped(x, y, tmp_path), sample_weight=np.ones(N))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        SpecialistRegressor(2).fit(*mapped(x, y[1:], tmp_path))
    with pytest.raises(ValueError, match="Unknown label type"):
        SpecialistClassifier(2).fit(*mapped(x, y, tmp_path))
    with pytest.raises(ValueError, match="contains NaN"):
        SpecialistRegressor(2).fit(*mapped(np.where(x > 2, np.nan, x), y, tmp_path))
    dask_x, dask_y = dask_array(x, y, tmp_path)
    with pytest.raises(ValueError, match="must be a Dask array or series"):
        SpecialistRegressor(2).fit(dask_x, y)
    with pytest.raises(ValueError, match="at least two classes"):
        SpecialistClassifier(2).fit(dask_x, (dask_y > 1e9).astype(int))


def test_chunks_that_are_read_but_once_are_refused(table, small):
    x, y = table
    once = iter([(x, y)])
    with pytest.raises(ValueError, match="must be there each time"):
        SpecialistRegressor(**SETTINGS).fit(LocalChunks(x[:5], lambda: once), None)


def test_a_dask_frame_with_categories_need_not_fit(frame, small, tmp_path):
    X, y = dask_series(frame.sort_values("town"), tmp_path)
    committee = SpecialistRegressor(**SETTINGS).fit(X, y)
    rows = frame.drop(columns="y")
    assert committee.n_iter_ > SETTINGS["max_iter"]
    # Rows come in an order, so that what is learned last is of one town.
    assert committee.score(rows, frame["y"]) > 0.95
    assert [column.name for column in committee.encoding_.columns if column.n_missing] == [
        "b",
        "town",
    ]


MEASURED = """
import resource, sys, warnings
from pathlib import Path
import numpy as np
import pandas as pd
from pinfactory import SpecialistRegressor
from pinfactory.estimators import drawn
from pinfactory.estimators.chunked import LocalChunks
warnings.simplefilter("ignore")
drawn.MOST_ROWS = 2**14
folder = Path(sys.argv[1])

def rows(n):
    for i in range(n):
        x = np.random.default_rng(i).random((32_768, 8))
        yield x, np.abs(x[:, 0] - 0.5)

def generated(n):
    return LocalChunks(next(rows(1))[0][:5], lambda: rows(n)), None

def parquet(n):
    parts = folder / str(n)
    parts.mkdir()
    for i, (x, y) in enumerate(rows(n)):
        frame = pd.DataFrame(x, columns=list("abcdefgh")).assign(y=y)
        frame.to_parquet(parts / f"{i}.parquet")
    return parts, "y"

def peak_of_fit(source):
    settings = {"start": "tree", "max_iter": 100, "batch_size": 4096, "random_state": 0}
    SpecialistRegressor(2, **settings).fit(*source)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

few, many = map({"generated": generated, "parquet": parquet}[sys.argv[2]], (8, 120))
print(-peak_of_fit(few) + peak_of_fit(many))
"""


@pytest.mark.slow
@pytest.mark.parametrize("source", ["generated", "parquet"])
def test_memory_does_not_grow_with_the_number_of_rows(source, tmp_path):
    command = [sys.executable, "-c", MEASURED, str(tmp_path), source]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    grown = int(told.stdout) * (1024 if sys.platform == "linux" else 1)
    # 112 chunks more are 264 MB of numbers.
    assert grown < 60 * 2**20
