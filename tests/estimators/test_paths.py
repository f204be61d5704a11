"""The gates of a tree as exact conditions in the user's columns."""

import re
from types import SimpleNamespace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import StandardScaler

from pinfactory import SpecialistClassifier, SpecialistRegressor
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import FamilyExpert, Hierarchy
from pinfactory.estimators.conditions import Condition
from pinfactory.estimators.paths import find_paths
from pinfactory.networks import SoftTree, split_paths
from pinfactory.tables import Encoding

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


def with_gates(committee, weight, bias):
    """Put other gates into a committee, so hard that a row has one expert only."""
    parts = tuple(jnp.asarray(1e3 * part, jnp.float32) for part in (weight, bias))
    committee.state_ = eqx.tree_at(
        lambda s: (s.model.selector.weight, s.model.selector.bias), committee.state_, parts
    )


def true_of(where: str, frame: pd.DataFrame) -> np.ndarray:
    """Evaluate a condition from its words alone."""
    held = np.ones(len(frame), bool)
    for term in where.split(" and "):
        if parts := re.fullmatch(r"(\S+) < (\w+) ≤ (\S+)", term):
            low, name, high = parts.groups()
            held &= (frame[name] > float(low)) & (frame[name] <= float(high))
        elif parts := re.fullmatch(r"(\w+) (>|≤) (\S+)", term):
            name, sign, cut = parts.groups()
            held &= (frame[name] > float(cut)) == (sign == ">")
        else:
            name, sign, levels = re.fullmatch(r"(\w+) (=|≠|in|not in) (.+)", term).groups()
            held &= frame[name].isin(levels.strip("{}").split(", ")) == (sign in ("=", "in"))
    return held


def test_a_hard_tree_has_exact_paths():
    frame, wage = shifts()
    classes = np.digitize(wage, [30.0, 45.0])
    committee = SpecialistClassifier(4, **QUICK).fit(frame, classes)
    tree = committee.state_.model.selector
    with_gates(committee, np.asarray(tree.weight), np.asarray(tree.bias))
    owner, rules = committee.assign(frame), committee.rules(frame, classes)
    assert len(rules) > 2
    for rule in rules:
        assert rule.path_fidelity > 0.99
        held = np.logical_and.reduce([passed(frame, gate) for gate in rule.path])
        assert (held == (owner == rule.expert)).mean() > 0.99


def test_gates_of_one_column_are_a_condition_in_words():
    """Years, then hours on one side and the town on the other; no training is needed for this."""
    frame, _ = shifts()
    committee = SpecialistRegressor(4)
    committee.encoding_ = encoding = Encoding.learn(frame)
    X, names = encoding.transform(frame), [feature.name for feature in encoding.features]
    committee.scaler_ = scaler = StandardScaler().fit(X)
    weight, bias = np.zeros((3, len(names)), np.float32), np.asarray([0.1, 0.3, -0.2], np.float32)
    weight[0, names.index("years")], weight[1, names.index("hours")] = 1.0, -1.0
    weight[2, names.index("town = Bath")] = 1.0
    tree = SoftTree(*map(jnp.asarray, (weight, bias, split_paths([0, 0, 1], 4))))
    experts = FamilyExpert(eqx.nn.Identity(), Categorical.from_logits)
    model = Hierarchy(tree, experts, jnp.ones(4, bool))
    committee.state_ = SimpleNamespace(model=model)
    years, hours = (scaler.transform(X)[:, names.index(name)] for name in ("years", "hours"))
    late, short = years + 0.1 > 0.0, -hours + 0.3 > 0.0
    bath = (frame["town"] == "Bath").to_numpy()
    owned = [~late & ~short, late & ~bath, ~late & short, late & bath]
    for path, mine in zip(find_paths(committee, X), owned, strict=True):
        np.testing.assert_array_equal(path.holds(), mine)
        where = Condition(path.terms, 1.0).text(encoding)
        np.testing.assert_array_equal(true_of(where, frame), mine)
        for gate, passing in zip(path.gates, path.passed, strict=True):
            np.testing.assert_array_equal(true_of(gate.comparison, frame), passing)
        assert path.gates[-1].comparison in ("town = Bath", "town ≠ Bath") or not late[mine].all()


def test_another_selector_has_no_path():
    frame, wage = shifts(200)
    settings = QUICK | {"start": "random", "max_iter": 50}
    rules = SpecialistRegressor(2, selector="linear", **settings).fit(frame, wage).rules()
    assert all(rule.path == () and not rule.exact for rule in rules)
