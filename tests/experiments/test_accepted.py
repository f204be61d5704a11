"""New results beside accepted ones."""

import json

import pytest
from scipy.stats import norm

from pinfactory.experiments import accept_result, compare, read_accepted, read_result
from pinfactory.experiments.experiment import Measure


def measure(name="accuracy", ours=0.9, spread=0.01, **more):
    rest = {
        "paper": None,
        "paper_method": None,
        "target": None,
        "higher_is_better": True,
        "passed": None,
        "n": 3,
        "unit": "",
    }
    return {"name": name, "ours": ours, "spread": spread, **rest, **more}


def result(*measures, **changes):
    content = {
        "name": "toy",
        "kind": "benchmark",
        "title": "Toy",
        "about": "",
        "place": "",
        "claim": "",
        "scale": "paper",
        "settings": {"seeds": 3},
        "seeds": 3,
        "skipped": {},
        "versions": {"pinfactory": "0.1.0"},
        "commit": "abc",
        "processor": "Abacus",
        "cores": 2,
        "measures": list(measures),
        "seconds": 1.0,
        "cpu_seconds": 1.0,
        "finished": "2020-01-01T00:00:00+00:00",
        "files": {},
        "error": "",
    }
    return content | changes


@pytest.fixture
def store(tmp_path):
    """Write a result as a run would, and return the folder."""

    def save(*measures, **changes):
        folder = tmp_path / "out" / "toy"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").write_text(json.dumps(result(*measures, **changes)))
        return tmp_path / "out"

    return save


@pytest.mark.parametrize(
    ("new", "old", "verdict"),
    [
        # Promised numbers and ratios have a good side, others have none.
        (measure(ours=0.85, target=0.8), measure(ours=0.9), "worse"),
        (measure(ours=0.95, target=0.8), measure(ours=0.9), "better"),
        (measure(ours=0.95, target=0.8, higher_is_better=False), measure(ours=0.9), "worse"),
        (measure(ours=80.0, unit="×"), measure(ours=90.0), "worse"),
        (measure(ours=0.85), measure(ours=0.9), "changed"),
        # Within what both spread.
        (measure(ours=0.885, target=0.8), measure(ours=0.9), "same"),
        (measure(ours=0.9, spread=None, target=0.8), measure(ours=0.9, spread=None), "same"),
        (measure(ours=None), measure(ours=None), "same"),
        (measure(ours=None), measure(ours=0.9), "changed"),
    ],
)
def test_a_number_is_judged_by_its_good_side_and_the_spread_of_both(new, old, verdict):
    (change,) = compare(result(new), result(old))
    assert change.verdict == verdict
    assert (change.new, change.old) == (new["ours"], old["ours"])


def test_times_are_compared_on_the_same_processor_only():
    slow, fast = measure("time", 2.0, unit="s"), measure("time", 1.0, unit="s")
    (change,) = compare(result(slow), result(fast))
    assert change.verdict == "changed"
    (change,) = compare(result(slow, processor="Loom"), result(fast))
    assert change.verdict == ""
    faster, ratio = measure("ratio", 2.0, unit="×"), measure("ratio", 1.0, unit="×")
    (change,) = compare(result(faster, processor="Loom"), result(ratio))
    assert change.verdict == "better"


def test_other_settings_are_not_compared_and_new_measures_are_new():
    (change,) = compare(result(measure(), settings={"seeds": 9}), result(measure(ours=0.1)))
    assert (change.verdict, change.old) == ("", None)
    (change,) = compare(result(measure("other")), result(measure()))
    assert change.verdict == "new"
    (change,) = compare(result(measure()), None)
    assert change.verdict == "new"


def test_accepting_copies_the_result(store, tmp_path):
    out = store(measure())
    path = accept_result(out, tmp_path / "results", "toy")
    assert path == tmp_path / "results" / "toy.json"
    assert read_accepted(tmp_path / "results") == {"toy": read_result(out / "toy" / "result.json")}


def test_what_failed_or_is_damaged_is_not_accepted(store, tmp_path):
    with pytest.raises(ValueError, match="toy failed"):
        accept_result(store(error="no wire"), tmp_path, "toy")
    out = store(measure())
    path = out / "toy" / "result.json"
    path.write_text(path.read_text()[:-3])
    with pytest.raises(ValueError, match="is damaged"):
        accept_result(out, tmp_path, "toy")
    (tmp_path / "odd.json").write_text(json.dumps(result()))
    with pytest.raises(ValueError, match=r"odd\.json is not the result of odd"):
        read_accepted(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: r.pop("measures"),
        lambda r: r.update(seconds="long"),
        lambda r: r["measures"].append({}),
        lambda r: r["measures"][0].pop("unit"),
    ],
)
def test_a_result_that_lacks_a_part_is_no_result(tmp_path, damage):
    content = result(measure())
    path = tmp_path / "result.json"
    path.write_text(json.dumps(content))
    assert read_result(path) == content
    damage(content)
    path.write_text(json.dumps(content))
    assert read_result(path) is None
    path.write_text("[" * 100_000)
    assert read_result(path) is None


def test_the_command_prints_results_and_says_what_got_worse(store, tmp_path, capsys, monkeypatch):
    from pinfactory.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["results"]) == 2
    assert "there is no result" in capsys.readouterr().err
    long = "times faster than a loop that does the same thing in the plainest way there is"
    store(measure(long, 50.0, 1.0, unit="×", n=3))
    assert main(["results"]) == 0
    assert "new" in capsys.readouterr().out
    assert main(["results", "--accept"]) == 0
    assert capsys.readouterr().out == "results/toy.json\n"
    store(measure(long, 40.0, 1.0, unit="×", n=3))
    assert main(["results", "toy"]) == 1
    printed = capsys.readouterr().out
    assert "40.00 ± 1.000" in printed
    assert "was 50.00" in printed
    assert "0 of 1 numbers are within the spread of both runs" in printed
    assert "1 got worse by more than the spread" in printed
    assert max(map(len, printed.splitlines())) <= 79
    assert main(["results", "tin"]) == 2
    assert "there is no result of 'tin'" in capsys.readouterr().err
    (tmp_path / "out" / "toy" / "result.json").write_text("{}")
    assert main(["results"]) == 0
    printed = capsys.readouterr().out
    assert "is damaged: run it again" in printed
    assert "50.00 ± 1.000" in printed  # the accepted one


def test_two_runs_are_compared_number_by_number(store, tmp_path, capsys):
    from pinfactory.cli import main

    out = store(measure("near", 50.0, 1.0), measure("far", 5.0, 0.1), measure("new", 1.0))
    other = out.rename(tmp_path / "other")
    store(measure("near", 51.0, 1.0), measure("far", 6.0, 0.1))
    assert main(["results", "--out", str(out), "--accepted", str(other)]) == 0
    near, far, _, total = capsys.readouterr().out.splitlines()[-4:]
    assert near.split() == ["near", "51.00", "±", "1.000", "was", "50.00", "same"]
    assert far.split() == ["far", "6.000", "±", "0.100", "was", "5.000", "changed"]
    assert total == "1 of 2 numbers are within the spread of both runs"


def test_the_median_of_turns_has_the_spread_of_most_of_them():
    found = Measure.median("ratio", [1.0, 2.0, 3.0, 4.0, 100.0], unit="×")
    # Half of normal values are closer to their mean than this part of their deviation.
    assert found.spread == pytest.approx(1.0 / norm.ppf(0.75))
    assert (found.ours, found.n, found.unit) == (3.0, 5, "×")
    assert Measure.median("ratio", [2.0]).spread is None
