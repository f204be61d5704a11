"""The gates of a tree as exact conditions in the user's columns."""

import equinox as eqx
import numpy as np
import pandas as pd
import pytest

from pinfactory import SpecialistClassifier, SpecialistRegressor

QUICK = {"max_iter": 400, "random_state": 0, "start": "tree", "early_stopping": False}


def shifts(n: int = 600) -> tuple[pd.DataFrame, np.ndarray]:
    random = np.random.default_rng(0)
    years, hours = random.uniform(0, 30, n), random.uniform(0, 12, n)
    town = random.choice(["Ayr", "Bath", "Cork"], n)
    late = years + 3.0 * hours + 4.0 * (town == "Bath") > 33.0
    wage = np.where(late, 60.0 - years, 10.0 + 2.0 * years) + random.normal(0, 0.5, n)
    return pd.DataFrame({"years": years, "hours": hours, "town": town}), wage


def passed(frame: pd.DataFrame, gate) -> np.ndarray:
    """Evaluate a gate from its names and numbers alone."""
    total = np.zeros(len(frame))
    for name, weight in zip(gate.features, gate.weights, strict=True):
        column, _, level = name.partition(" = ")
        total += weight * ((frame[column] == level) if level else frame[column])
    return (total > gate.threshold) == gate.above


def test_with_two_experts_the_gate_tells_exactly_whose_a_row_is():
    frame, wage = shifts()
    committee = SpecialistRegressor(2, **QUICK).fit(frame, wage)
    share = committee.responsibilities(frame)
    clear = np.abs(share[:, 0] - 0.5) > 1e-3
    rules = committee.rules()
    assert len(rules) == 2
    for rule in rules:
        (gate,) = rule.path
        assert rule.path_fidelity == pytest.approx(1.0, abs=1e-2)
        mine = share.argmax(axis=1) == rule.expert
        np.testing.assert_array_equal(passed(frame, gate)[clear], mine[clear])
        assert set(gate.features) == {"years", "hours", "town = Ayr", "town = Bath", "town = Cork"}
        assert f"[{gate.features[0]}]" in str(rules)
    assert "path" in rules.frame()
    assert max(map(len, str(rules).splitlines())) <= 79


def test_a_hard_tree_has_exact_paths():
    frame, wage = shifts()
    committee = SpecialistClassifier(4, **QUICK).fit(frame, np.digitize(wage, [30.0, 45.0]))

    def hardened(state):
        tree = state.model.selector
        return eqx.tree_at(
            lambda s: (s.model.selector.weight, s.model.selector.bias),
            state,
            (1e3 * tree.weight, 1e3 * tree.bias),
        )

    committee.state_ = hardened(committee.state_)
    owner = committee.assign(frame)
    rules = committee.rules(frame, np.digitize(wage, [30.0, 45.0]))
    assert len(rules) > 2
    for rule in rules:
        assert rule.path_fidelity > 0.99
        held = np.logical_and.reduce([passed(frame, gate) for gate in rule.path])
        assert (held == (owner == rule.expert)).mean() > 0.99


def test_another_selector_has_no_path():
    frame, wage = shifts(200)
    rules = SpecialistRegressor(2, selector="linear", **QUICK).fit(frame, wage).rules()
    assert all(rule.path == () and rule.path_fidelity == 0.0 for rule in rules)
