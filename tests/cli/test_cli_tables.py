"""From a file to predictions, explanations and a page, on the command line."""

import json
import re
import shutil
import subprocess
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from io import StringIO

import numpy as np
import pandas as pd
import pytest

from pinfactory import SpecialistClassifier, SpecialistRegressor, load
from pinfactory.cli import main
from pinfactory.cli.models import predictions
from pinfactory.cli.tables import labels, read_task

NASTY = '<script>alert("x")</script>$a$'


def shifts(n):
    """Wages that follow another line by day and by night, with gaps and a nasty category."""
    random = np.random.default_rng(0)
    night, years = random.random(n) < 0.5, random.integers(0, 30, n).astype(float)
    town = random.choice(["Ayr", NASTY, "Bath"], n)
    wage = np.where(night, 40.0 + 0.2 * years, 10.0 + 1.5 * years) + random.normal(0, 1, n)
    years[:: n // 10] = np.nan
    columns = {"wage": wage, "night": night, "years": years, "town": town}
    return pd.DataFrame(columns)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    frame = shifts(300)
    frame.loc[5, "wage"] = np.nan
    frame.to_csv(folder / "shifts.csv", index=False)
    frame.drop(columns="wage").to_parquet(folder / "new.parquet")
    return folder


@pytest.fixture(scope="module")
def fitted(folder):
    """The folder after `fit`, with what it printed in a file."""
    arguments = ["--target", "wage", "--experts", "2", "--out", str(folder)]
    with redirect_stdout(StringIO()) as stream:
        assert main(["fit", str(folder / "shifts.csv"), *arguments]) == 0
    (folder / "printed.txt").write_text(stream.getvalue())
    return folder


def test_fit_ends_with_a_short_table_a_model_and_a_page(fitted):
    printed = (fitted / "printed.txt").read_text()
    lines = printed.splitlines()
    assert max(len(line) for line in lines if str(fitted) not in line) <= 79
    assert "1 row without wage left out" in printed
    scores = dict(re.findall(r"^(committee|one line|boosting) +(-?[\d.]+)", printed, re.MULTILINE))
    assert float(scores["committee"]) > float(scores["one line"]) + 0.1
    assert re.search(r"1\.00 +(not )?night", printed)
    assert lines[0].startswith("shifts.csv: 299 rows, 3 columns")
    assert "wage has numbers; if they are labels, use --kind classes" in printed
    assert load(fitted / "model.pin").target_name_ == "wage"
    page = (fitted / "report.html").read_text()
    assert len(page.encode()) < 2e6
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "What more bits would buy" in page
    assert not re.search(r"(src|href)=[\"']?https?:", page)


def test_card_is_written_by_fit_and_printed_with_other_rows(fitted, capsys):
    written = (fitted / "card.md").read_text()
    assert "| boosting |" in written
    assert "<script" not in written
    assert main(["card", str(fitted / "model.pin"), str(fitted / "shifts.csv")]) == 0
    printed = capsys.readouterr().out
    assert "On 299 rows that the model has not learned from." in printed
    assert main(["card", str(fitted / "model.pin"), str(fitted / "new.parquet")]) == 2
    assert "must have the column 'wage'" in capsys.readouterr().err


def test_predict_gives_what_the_model_says_and_who_decided(fitted, capsys, tmp_path):
    model, new = str(fitted / "model.pin"), str(fitted / "new.parquet")
    assert main(["predict", model, new, "--out", str(tmp_path / "p.csv")]) == 0
    answers = pd.read_csv(tmp_path / "p.csv")
    committee, frame = load(model), pd.read_parquet(new)
    mean, deviation = committee.predict(frame, return_std=True)
    np.testing.assert_allclose(answers["wage"], mean)
    np.testing.assert_allclose(answers["deviation"], deviation)
    np.testing.assert_array_equal(answers["expert"], committee.assign(frame))
    capsys.readouterr()
    assert main(["predict", model, new, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[3]["wage"] == pytest.approx(mean[3])
    assert main(["predict", model, new]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("wage,deviation,expert,p(expert)\n")
    shown = pd.read_csv(StringIO(printed))
    np.testing.assert_allclose(shown["wage"], mean, rtol=1e-5)
    assert max(len(text) for text in re.findall(r"[\d.]+", printed)) <= 8  # six digits, 0 and point


def test_classes_that_a_gap_made_fractions_are_whole():
    assert labels(pd.Series([0.0, 1.0, 1.0])).tolist() == [0, 1, 1]
    assert labels(pd.Series([0.5, 1.0])).tolist() == ["0.5", "1.0"]


def test_columns_of_predictions_keep_out_of_the_way_of_the_target():
    x = np.linspace(0.0, 1.0, 60)
    frame, quick = pd.DataFrame({"x": x}), {"max_iter": 5, "start": "random"}
    regressor = SpecialistRegressor(1, **quick).fit(frame, pd.Series(x, name="deviation"))
    told = predictions(regressor, frame)
    assert list(told) == ["deviation", "deviation_", "expert", "p(expert)"]
    np.testing.assert_allclose(told["deviation"], regressor.predict(frame))
    labels = pd.Series(np.where(x > 0.5, "expert", "lay"), name="expert")
    told = predictions(SpecialistClassifier(1, **quick).fit(frame, labels), frame)
    assert list(told) == ["expert", "p(expert)", "p(lay)", "expert_", "p(expert)_"]


def test_explain_prints_rules_a_row_and_what_was_done(fitted, capsys):
    model = str(fitted / "model.pin")
    assert main(["explain", model]) == 0
    printed = capsys.readouterr().out
    assert "night" in printed
    assert max(map(len, printed.splitlines())) <= 79
    assert main(["explain", model, str(fitted / "shifts.csv"), "--row", "3"]) == 0
    assert "decided  by expert" in capsys.readouterr().out
    assert main(["explain", model, "--columns"]) == 0
    assert re.search(r"years +number +\d+ missing set to", capsys.readouterr().out)
    assert main(["explain", model, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {rule["where"] for rule in told["rules"]} == {"night", "not night"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(("typed", "offered"), [("fi", "fit"), ("fit a.csv --tar", "--target")])
def test_a_shell_completes_commands_and_options(tmp_path, capsys, typed, offered):
    assert main(["--tyro-print-completion", "bash"]) == 0
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    words = f"pinfactory {typed}".split()
    ask = (
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _tyro_pinfactory pinfactory"
    )
    script = f"source {tmp_path}/completion; {ask} {words[-1]} {words[-2]}; echo ${{COMPREPLY[@]}}"
    told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert offered in told.stdout.split()


def test_columns_that_number_the_rows_and_orders_of_dates_are_told(tmp_path):
    row = np.arange(40)
    frame = pd.DataFrame({"the row": row[::-1] + 7, "x": 3 * row, "odd": row % 9, "y": row / 8})
    frame["when"] = [f"{1 + i % 12}/{1 + i % 30}/1994 0:00:00" for i in row]
    frame["either"] = [f"{1 + i % 12}/{1 + i % 12}/1994" for i in row]
    frame["pay"] = [f"${1000 + i:,}.50" for i in row]
    frame["ip"] = [f"10.0.{i}.1" for i in row]
    frame.loc[3, "y"] = np.nan
    frame.to_csv(tmp_path / "rows.csv", index=False)
    notes = read_task(tmp_path / "rows.csv", "y").notes
    assert [note for note in notes if "dates" in note] == ["when is read as dates, month/day/year"]
    assert [note for note in notes if "numbers the rows" in note] == [
        "the row numbers the rows; if it says nothing else, use --without 'the row'"
    ]
    assert "numbers the rows" not in "".join(
        read_task(tmp_path / "rows.csv", "y", without=("the row",)).notes
    )


def test_row_numbers_that_are_left_out_anyway_may_be_named(tmp_path):
    row = np.arange(30)
    frame = pd.DataFrame({"rownames": row + 1, "x": row % 7, "y": row / 8})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    for without in ((), ("rownames",)):
        task = read_task(tmp_path / "rows.csv", "y", without=without)
        assert list(task.frame.columns) == ["x"]


def write_odd_tables():
    row = np.arange(40)
    odd = {"row": row, "same": 3, "typo": row.astype(str), "once": "a", "tiny": 1e-300 * row}
    odd["day"] = np.datetime64("2024-01-01") + row
    frame = pd.DataFrame(odd | {"none": np.nan}).astype({"typo": object})
    frame.loc[5, ["typo", "once"]] = ["oops", "b"]
    frame.to_csv("odd.csv", index=False)
    pd.DataFrame({"row": row, "huge": 1e200 * row}).to_csv("huge.csv", index=False)
    pd.DataFrame({"row": row, "key": [f"k{i}" for i in row]}).to_csv("key.csv", index=False)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["predict", "model.pin", "towns.csv"], "lacks 'night', 'years'"),
        (["fit", "none.csv", "--target", "wage"], "there is no file 'none.csv'"),
        (["fit", "shifts.csv", "--target", "pay"], "has no column 'pay'; it has wage, night"),
        (["fit", "shifts.csv", "--target", "Wages"], "did you mean 'wage'?"),
        (["fit", "shifts.csv", "--target", "wage", "--without", "x"], "has no column 'x'"),
        (["fit", "shifts.csv", "--target", "wage", "--holdout", "0.001"], "leave 2 of the 299"),
        (["fit", "shifts.csv", "--target", "wage", "--experts", "300"], "at most the number of"),
        (["fit", "shifts.csv", "--target", "wage", "--out", "new.parquet"], "must be a folder"),
        (["fit", "shifts.csv", "--target", "wage", "--out", "new.parquet/a"], "must be a folder"),
        (["fit", "odd.csv", "--target", "same"], "must differ between rows, but is always 3"),
        (["fit", "odd.csv", "--target", "typo"], "has numbers but for 'oops': correct or empty"),
        (["fit", "odd.csv", "--target", "once"], "two classes of at least 2 rows, but only 'a'"),
        (["fit", "odd.csv", "--target", "day"], "'day' holds dates or durations: predict numbers"),
        (["fit", "odd.csv", "--target", "tiny"], "must differ by more than 1e-100"),
        (["fit", "odd.csv", "--target", "none"], "at least 20 rows with 'none', but has 0"),
        (["fit", "huge.csv", "--target", "huge"], "at most 1e+100, but has 3.9e+201"),
        (["fit", "huge.csv", "--target", "row"], "'huge' must hold numbers of at most 1e+100"),
        (["fit", "key.csv", "--target", "row"], "'key' (nearly every row has another value)"),
        (["density", "shifts.csv", "--out", "new.parquet/a.pin"], "must be a folder"),
        (["curve", "shifts.csv", "--target", "wage", "--out", "a.doc"], "--out must end in one of"),
        (["fit", "shifts.csv", "--target", "wage", "--holdout", "2"], "--holdout must be above 0"),
        (["fit", "shifts.csv", "--target", "wage", "--kind", "classes"], "too many classes"),
        (["fit", "shifts.csv", "--target", "town", "--kind", "numbers"], "must hold numbers"),
        (["predict", "none.pin", "shifts.csv"], "write one with pinfactory fit"),
        (["predict", "shifts.csv", "shifts.csv"], "shifts.csv"),
        (["explain", "model.pin", "--row", "1"], "pinfactory explain model.pin DATA.csv --row 1"),
        (["explain", "model.pin", "shifts.csv", "--row", "900"], "from 0 to 299, but got 900"),
        (["compare", "shifts.csv", "--target", "wage", "--folds", "1"], "--folds must be"),
        (["compare", "shifts.csv", "--target", "wage", "--jobs", "0"], "--jobs must be"),
        (["compare", "shifts.csv", "--target", "wage", "--skip", "EMB"], "--skip must be among"),
        (["curve", "shifts.csv", "--target", "wage", "--points", "1"], "--points must be"),
        (["density", "shifts.csv", "--without", "no"], "has no column 'no'"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(fitted, monkeypatch, capsys, arguments, told):
    monkeypatch.chdir(fitted)
    shifts(20)[["town"]].to_csv("towns.csv", index=False)
    write_odd_tables()
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("pinfactory: ")
    assert told in printed
    assert len(printed.splitlines()) == 1


@pytest.fixture
def small_ebm(monkeypatch):
    """EBM, where it is installed, with few rounds: what it finds is not asked here."""
    if find_spec("interpret"):
        from interpret import glassbox

        name = "ExplainableBoostingRegressor"
        few = partial(getattr(glassbox, name), max_rounds=20, outer_bags=2)
        monkeypatch.setattr(glassbox, name, few)


@pytest.mark.slow
@pytest.mark.usefixtures("small_ebm")
def test_compare_and_curve(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = str(tmp_path / "small.csv")
    shifts(120).to_csv(data, index=False)
    assert main(["compare", data, "--target", "wage", "--folds", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["committee"]["score"] > found["one line"]["score"] + 0.1
    assert found["committee"]["rules"] >= 2
    assert found["one line"]["rules"] is None
    arguments = ["compare", data, "--target", "wage", "--folds", "2", "--json", "--jobs", "1"]
    assert main([*arguments, "--skip", "ebm", "Cubist"]) == 0  # installed or not
    shared = json.loads(capsys.readouterr().out)
    assert shared.keys() == found.keys() - {"EBM", "Cubist"}
    for name in shared:
        told = found[name]
        assert shared[name]["score"] == pytest.approx(told["score"], abs=1e-3)
        assert shared[name]["terms"] == told["terms"]
    assert main(["curve", data, "--target", "wage", "--points", "3", "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert points[0]["information_selector"] < points[-1]["information_selector"]
    assert (tmp_path / "curve.svg").exists()
    assert main(["curve", data, "--target", "wage", "--points", "3"]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"^(?:0\.5|5|50) ", printed, re.MULTILINE) == ["0.5 ", "5 ", "50 "]
    assert max(map(len, printed.splitlines())) <= 79


def test_density_finds_the_strange_row_of_a_table_with_gaps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    frame = shifts(300)
    frame.loc[40, ["wage", "years"]] = [-60.0, np.nan]
    frame.to_csv("shifts.csv", index=False)
    assert main(["density", "shifts.csv", "--rows", "3"]) == 0
    printed = capsys.readouterr().out
    assert "300 rows, 3 columns, 11 rows with gaps" in printed
    assert "left out: town; --categories uses those of text" in printed
    assert max(map(len, printed.splitlines())) <= 79
    assert re.search(r"surprising, given the rest\n40 +\d+\.\d +wage = −60", printed)
    assert (tmp_path / "density.pin").exists()
    assert main(["density", "shifts.csv", "--categories", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["unusual"][0]["row"] == 40
    assert "town" in [column[0] for column in told["columns"]]
    assert main(["explain", "density.pin"]) == 2
    assert "committee fitted on a table" in capsys.readouterr().err


@pytest.mark.slow
def test_classes_make_a_page_too_that_doubts_a_column_which_tells_all(folder, tmp_path, capsys):
    frame = shifts(200)
    frame["paid"] = frame["wage"] > 30
    when = np.where(frame["paid"], "2021-01-04", "2020-01-06")
    frame["a stamp"] = pd.to_datetime(when) + pd.to_timedelta(np.arange(200) % 7, unit="D")
    frame.drop(columns="wage").to_csv(tmp_path / "paid.csv", index=False)
    arguments = ["--target", "paid", "--experts", "2", "--out", str(tmp_path), "--json"]
    assert main(["fit", str(tmp_path / "paid.csv"), *arguments]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "classes"
    assert told["held_out"][0]["score"] == 1.0
    assert "use --without 'a stamp'" in told["notes"][-1]
    assert set(told["rules"][0]["typical"]) == {"False", "True"}
    page = (tmp_path / "report.html").read_text()
    assert "log-odds" in page
    assert "right as often" in page
    assert re.search("the truth was (True|False)", page)
    assert "The most frequent answer, " in page
