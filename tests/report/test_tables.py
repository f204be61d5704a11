"""Numbers and tables for the documentation."""

import pytest

from pinfactory.report import find_measure, format_measure, table


def measure(name, ours, spread=None):
    return {"name": name, "ours": ours, "spread": spread}


RESULT = {
    "name": "toy",
    "measures": [
        measure("accuracy, circles, 1 expert", 0.4321, 0.0456),
        measure("accuracy, circles, 4 experts", 0.991, 0.0064),
        measure("accuracy, moons, 4 experts", 0.9904),
        measure("bits, circles, 4 experts", -1.08),
        measure("seconds", None),
    ],
}


def test_a_number_is_found_by_experiment_and_name():
    result, found = find_measure({"toy": RESULT}, "toy: accuracy, circles, 4 experts ")
    assert (result, found["ours"]) == (RESULT, 0.991)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("toy", "'EXPERIMENT: MEASURE'"),
        ("tin: bits", "no accepted result of 'tin'"),
        ("toy: bits", "no measure 'bits'"),
    ],
)
def test_a_number_that_is_not_there_is_an_error(reference, message):
    with pytest.raises(ValueError, match=message):
        find_measure({"toy": RESULT}, reference)


@pytest.mark.parametrize(
    ("i", "style", "text"),
    [
        (0, "", "0.432"),
        (0, ".1f", "0.4"),
        (0, "±.2f", "0.43 ± 0.05"),
        (0, "±", "0.432 ± 0.046"),
        (2, "±.3f", "0.990"),
        (3, ".2f", "−1.08"),
        (4, ".2f", "–"),
    ],
)
def test_a_number_has_the_format_that_is_asked_for(i, style, text):
    assert format_measure(RESULT["measures"][i], style) == text


def test_parts_of_names_make_rows_and_columns():
    assert table(RESULT, ["accuracy"], rows=1, columns=2, style="±.2f") == [
        ["", "1 expert", "4 experts"],
        ["circles", "0.43 ± 0.05", "0.99 ± 0.01"],
        ["moons", "–", "0.99"],
    ]
    both = table(RESULT, ["accuracy", "bits"], rows=2, columns=1, style=".2f")
    assert both == [
        ["", "circles", "moons"],
        ["1 expert", "0.43", "–"],
        ["4 experts", "0.99 / −1.08", "0.99"],
    ]


def test_without_parts_every_measure_has_a_row():
    assert table(RESULT, ["bits"]) == [["", "toy"], ["bits, circles, 4 experts", "−1.080"]]
    assert len(table(RESULT)) == 6
    with pytest.raises(ValueError, match="no length"):
        table(RESULT, ["length"])
