"""What fewer or more bits buy, and the model card that says so."""

import numpy as np
import pandas as pd
import pytest

from pinfactory import SpecialistClassifier, SpecialistRegressor
from pinfactory.estimators.tempering import tempered_curve

QUICK = {
    **{"n_experts": 2, "max_iter": 400, "random_state": 0},
    **{"start": "tree", "early_stopping": False},
}
NASTY = "<b>|`x`"


def shifts(n: int, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    random = np.random.default_rng(seed)
    night, years = random.random(n) < 0.5, random.uniform(0, 30, n)
    wage = np.where(night, 60.0 - years, 10.0 + 2.0 * years) + random.normal(0, 0.5, n)
    frame = pd.DataFrame({"night": night, "years": years, NASTY: random.choice(["a", "b"], n)})
    return frame, pd.Series(wage, name="wage")


@pytest.fixture(scope="module")
def committee() -> SpecialistRegressor:
    return SpecialistRegressor(**QUICK).fit(*shifts(400))


def test_bits_and_accuracy_rise_with_the_resource_of_the_selector(committee):
    X, y = shifts(300, 1)
    curve = tempered_curve(committee, X, y, [0.0, 0.3, 1.0])
    bits = [point.bits for point in curve]
    assert bits[0] == pytest.approx(0.0, abs=1e-9)
    assert bits[0] < bits[1] < bits[2] < 1.01
    # A selector that does not look: the experts' mean answer by their shares.
    share = committee.responsibilities(X).mean(axis=0)
    blind = sum(p * committee.expert_predict(X, m) for m, p in enumerate(share))
    spread = ((y - y.mean()) ** 2).sum()
    assert curve[0].score == pytest.approx(1.0 - ((y - blind) ** 2).sum() / spread, rel=1e-4)
    assert curve[2].score == pytest.approx(committee.score(X, y), abs=1e-4)
    assert curve[2].score > curve[0].score + 0.3


def test_a_card_tells_the_whole_story_in_safe_markdown(committee):
    X, y = shifts(300, 1)
    card = committee.card(X, y)
    for heading in ("Quality", "Rules", "Bits", "Columns", "Limits", "Settings"):
        assert f"\n## {heading}\n" in card
    assert card.startswith("# Model card: wage\n")
    assert "| this committee |" in card
    assert "| 1 |" in card  # β₁ as it is, among what more bits would buy
    assert "<b>" not in card
    assert r"&lt;b&gt;\|\`x\`" in card
    rows = [line for line in card.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)
    assert "Not measured" in committee.card()


def test_a_classifier_has_a_card_too():
    X, y = shifts(300)
    labels = np.where(y > 35.0, "high", "low")
    committee = SpecialistClassifier(**QUICK).fit(X, labels)
    curve = tempered_curve(committee, X, labels, [1.0])
    assert curve[0].score == pytest.approx(committee.score(X, labels))
    told = committee.predict_proba(X)[np.arange(300), (labels == "low").astype(int)]
    assert curve[0].error == pytest.approx(-np.log(np.maximum(told, 1e-3)).mean(), rel=1e-3)
    card = committee.card(X, labels)
    assert "Classes: high, low" in card
    share = (labels == "high").mean()
    name, share = ("high", share) if share > 0.5 else ("low", 1 - share)
    assert f"The most frequent answer, {name}, is right for {share:.1%} of them." in card
