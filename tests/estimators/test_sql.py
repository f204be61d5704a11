import sqlite3

import equinox as eqx
import jax
import numpy as np
import pandas as pd
import pytest

from pinfactory import SpecialistClassifier, SpecialistRegressor
from pinfactory.networks import SoftTree

SETTINGS = {
    **{"n_experts": 3, "max_iter": 200, "random_state": 0},
    **{"start": "tree", "early_stopping": False},
}


@pytest.fixture(scope="module")
def table():
    """Every kind of column but dates, with quotes in names and values, and gaps."""
    random = np.random.default_rng(0)
    n = 300
    frame = pd.DataFrame(
        {
            'the "area"': np.where(random.random(n) < 0.2, np.nan, random.normal(size=n)),
            "town": random.choice(["O'Hare", "Bath", "Cork", None], n, p=[0.4, 0.3, 0.2, 0.1]),
            "rare": ["a"] * 150 + ["b"] * 130 + [f"r{i}" for i in range(20)],
            "two": random.choice(["yes", "no"], n),
            "lift": random.random(n) < 0.5,
        }
    )
    value = frame['the "area"'].fillna(0.3)
    return frame, np.where(frame["lift"], value, -2 * value) + (frame["town"] == "Bath")


def answers(committee, frame):
    with sqlite3.connect(":memory:") as connection:
        frame.to_sql("rows", connection, index=False)
        return pd.read_sql_query(committee.to_sql("rows"), connection)


@pytest.mark.slow
def test_the_query_gives_what_the_committee_says(table):
    frame, y = table
    # Values that were not seen, and numbers far away.
    new = frame.copy()
    new.loc[:4, "rare"], new.loc[5:9, "two"] = "new", "perhaps"
    new.loc[10:14, 'the "area"'] = 40.0
    new.loc[15:19, "town"] = "Derry"  # unknown, where only what is missing has an indicator
    regressor = SpecialistRegressor(**SETTINGS).fit(frame, y)
    with pytest.warns(UserWarning, match="'perhaps' in column 'two'"):
        expected, shares = regressor.predict(new), regressor.responsibilities(new)
    found = answers(regressor, new)
    np.testing.assert_allclose(found["prediction"], expected, rtol=1e-4, atol=1e-4)
    for m in range(3):
        if f"p(expert {m})" in found:
            np.testing.assert_allclose(found[f"p(expert {m})"], shares[:, m], atol=1e-4)
    labels = np.where(y > 0.5, "much", "little")
    for target in (labels, np.where(y < -0.5, "none", labels)):
        classifier = SpecialistClassifier(**SETTINGS | {"n_experts": 2}).fit(frame, target)
        found, proba = answers(classifier, frame), classifier.predict_proba(frame)
        for k, label in enumerate(classifier.classes_):
            np.testing.assert_allclose(found[f"p({label})"], proba[:, k], atol=1e-4)


def test_what_sql_cannot_say_is_refused_by_name(table):
    frame, y = table
    dated = frame.assign(day=pd.date_range("2024-01-01", periods=300))
    quick = SETTINGS | {"start": "random", "max_iter": 5}
    committee = SpecialistRegressor(**quick, selector="linear").fit(dated, y)
    with pytest.raises(ValueError, match='needs selector="tree"'):
        committee.to_sql("t")
    tree = SoftTree.random(len(committee.encoding_.features), 3, key=jax.random.key(0))
    committee.state_ = eqx.tree_at(lambda s: s.model.selector, committee.state_, tree)
    with pytest.raises(ValueError, match="fit without 'day'"):
        committee.to_sql("t")
    waited = frame.assign(wait=pd.to_timedelta(np.arange(300), unit="h"))
    committee = SpecialistRegressor(**quick).fit(waited, y)
    with pytest.raises(ValueError, match="fit without 'wait'"):
        committee.to_sql("t")


def test_truths_of_text_are_compared_as_text(table):
    frame, y = table
    frame = frame[["lift"]].assign(lift=frame["lift"].map({True: "True", False: "False"}))
    committee = SpecialistRegressor(**SETTINGS | {"max_iter": 5}).fit(frame, y)
    found = answers(committee, frame)["prediction"]
    np.testing.assert_allclose(found, committee.predict(frame), rtol=1e-4, atol=1e-4)
