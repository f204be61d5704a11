"""What is printed of rules and columns fits 80 columns and leaves out what says little."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pinfactory.tables import Encoding, Gate, Rule, Rules, Weight

LONG = "a class with a name of more than thirty letters"


def rule(path, outputs=("",), column="area"):
    weights = tuple(Weight(column, "", output, 1.0, 0.5, 0) for output in outputs)
    typical = dict.fromkeys(outputs, 0.5)
    rest = (1.0,) * len(outputs) + (0.0,)
    return Rule(
        *(0, 1.0, 1.0, "always", (), 1.0, path, 1.0, False, 9, 9, typical, weights),
        rest=rest,
        little=0.45,
        score=0.5,
    )


def printed(rule):
    text = str(Rules((rule,), 9, "R²", ""))
    assert max(map(len, text.splitlines())) <= 79
    return text


def gates(n_features):
    names = tuple(f"feature {i}" for i in range(n_features))
    return (
        Gate(names, (1.0,) * n_features, 2.0, True, ""),
        Gate(names, (1.0,) * n_features, 3.0, False, ""),
    )


def test_gates_of_few_features_are_printed_and_those_of_many_counted():
    few = printed(rule(gates(5)))
    assert "1 [feature 0] + 1 [feature 1] + 1 [feature 2] + 2 more > 2" in few.replace("\n", "")
    many = printed(rule(gates(50)))
    assert "2 splits of the tree, each by 50 features" in many
    assert "feature 0" not in many


def test_a_gate_of_one_column_is_printed_as_a_comparison():
    gate = Gate(("area",), (0.0156,), 21.6, True, "area > 1384")
    assert "gate   area > 1384\n" in printed(rule((gate,)))


def test_columns_that_change_hardly_anything_are_counted_with_what_they_change():
    weights = tuple(Weight(name, "", "", 1.0, 0.5, 0) for name in "abcdefg")
    one = replace(rule(()), weights=weights, rest=(9.0, 5.0, 0.4, 0.3, 0.3, 0.2, 0.1, 0.0))
    assert printed(one).endswith(
        "         a  +1 ± 0.5\n         b  +1 ± 0.5\n         … and 5 more, together ± 0.4"
    )
    even = replace(one, rest=(9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 0.0))
    assert printed(even).endswith("e  +1 ± 0.5\n         … and 2 more, together ± 4")


def test_rules_come_back_from_plain_values_that_are_sound():
    told = Rules((rule(gates(2)),), 9, "R²", "")
    plain = told.to_plain()
    assert Rules.from_plain(plain) == told
    plain["rules"][0]["rest"] = [1.0]
    with pytest.raises(ValueError, match="what is left after each of its columns"):
        Rules.from_plain(plain)


def test_numbers_to_read_are_weights_constants_and_gates():
    shared, other = gates(5)
    comparison = Gate(("a",), (1.0,), 2.0, True, "a > 2")
    paths = ((shared,), (shared._replace(above=False), other, comparison))
    told = Rules(tuple(map(rule, paths)), 9, "R²", "")
    assert told.n_numbers == 2 * (1 + 1) + 2 * (5 + 1) + 1


def test_a_long_name_has_its_weight_behind_it():
    text = printed(rule((), outputs=(LONG, "b", "c")))
    assert f"area → {LONG}  +1 ± 0.5" in text
    short = printed(rule((), outputs=("a", "b", "c")))
    assert "area → a  +1 ± 0.5\n" in short


def test_columns_with_long_names_are_printed_in_80_columns():
    gaps = np.where(np.arange(3000) % 2, np.nan, np.arange(3000.0))
    frame = pd.DataFrame({"tropicalstorm_force_diameter": gaps, "kind": ["a", "b", "c"] * 1000})
    lines = str(Encoding.learn(frame)).splitlines()
    assert max(map(len, lines)) <= 79
    assert " ".join(" ".join(lines[:2]).split()) == (
        "tropicalstorm_force_diameter number 1,500 missing set to 1499, with an indicator"
    )


def test_small_weights_are_told_for_more_than_one_unit():
    told = [Weight("a", "", "", v, abs(v) / 2, 1).text() for v in (-5.82e-6, 0.002, 3e-14, 0.0)]
    assert told[:2] == ["−0.00582 ± 0.0029 for 1,000", "+0.002 ± 0.001"]
    assert told[2].endswith("for 1,000,000,000")
    assert told[3] == "0 ± 0"


def test_what_changes_a_probability_has_a_unit():
    text = str(Rules((rule((), outputs=("no", "yes")),), 9, "accuracy", "log-odds of yes"))
    assert "says   no: 0.5, yes: 0.5 on average" in text
    assert "on average, and log-odds of yes for each unit or category" in " ".join(text.split())
