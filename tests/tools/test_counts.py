"""Counts of tools become results that pages can show."""

from counts import Trial, record, recorded

from pinfactory.experiments import read_accepted
from pinfactory.report import table

TRIAL = Trial("tries", "Tries", "About.", "python tools/try.py")


def test_kinds_are_rows_and_a_kind_tried_again_replaces_its_row(tmp_path):
    record(tmp_path, TRIAL, "A", 0, {"tried": 5, "refused": 4, "faults": 1})
    record(tmp_path, TRIAL, "B", 7, {"tried": 3, "refused": 3, "faults": 0})
    record(tmp_path, TRIAL, "A", 1, {"tried": 6, "refused": 6, "faults": 0})
    assert recorded(tmp_path, TRIAL, "A") == {"tried": 6, "refused": 6, "faults": 0}
    assert recorded(tmp_path, TRIAL, "C") == {}
    result = read_accepted(tmp_path)["tries"]
    cells = table(result, rows=1, columns=0, style=",.0f")
    assert cells[0] == ["", "tried", "refused", "faults"]
    assert sorted(cells[1:]) == [["A", "6", "6", "0"], ["B", "3", "3", "0"]]
    assert {kind: made["seed"] for kind, made in result["settings"].items()} == {"A": 1, "B": 7}
    assert [m["passed"] for m in result["measures"] if m["name"].startswith("faults")] == [True] * 2
