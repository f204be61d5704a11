import re
import sys
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.special import logit
from sklearn.linear_model import LinearRegression

from pinfactory import SpecialistClassifier, SpecialistRegressor, load
from pinfactory.estimators.conditions import find_condition, shortest
from pinfactory.estimators.row import Change, Contribution, RowExplanation
from pinfactory.tables import Encoding

# One start, and nothing held out: there is less to compile.
SETTINGS = {
    **{"n_experts": 2, "max_iter": 400, "random_state": 0},
    **{"start": "tree", "early_stopping": False},
}


@pytest.fixture(scope="module")
def homes():
    """Flats and houses whose prices follow another line each, and differ by place."""
    random = np.random.default_rng(0)
    n = 600
    kind, area = random.choice(["flat", "house"], n), random.uniform(20, 120, n)
    place = random.choice(["north", "south", "east"], n, p=[0.5, 0.3, 0.2])
    line = np.where(kind == "house", 300.0 + 1.0 * area, 50.0 + 4.0 * area)
    price = line + 20.0 * (place == "south") + random.normal(0, 3, n)
    return pd.DataFrame({"kind": kind, "area": area, "place": place}), price


@pytest.fixture(scope="module")
def regressor(homes):
    return SpecialistRegressor(**SETTINGS).fit(*homes)


@pytest.fixture(scope="module")
def classifier(homes):
    frame, price = homes
    return SpecialistClassifier(**SETTINGS).fit(frame, np.where(price > 330, "dear", "cheap"))


def test_rules_say_where_and_what_in_the_users_words(homes, regressor, tmp_path):
    frame, price = homes
    rules = regressor.rules()
    assert {rule.where for rule in rules} == {"kind = house", "kind = flat"}
    for rule in rules:
        mine = (frame["kind"] == rule.where.split()[-1]).to_numpy()
        assert rule.fidelity == pytest.approx(1.0)
        assert rule.rows == rule.matched == mine.sum()
        assert rule.typical[""] == pytest.approx(price[mine].mean(), abs=3.0)
        assert rule.score > 0.9
        slope = {"kind = house": 1.0, "kind = flat": 4.0}[rule.where]
        (area,) = rule.columns()["area", ""]
        # The error of the slope of ordinary least squares.
        noise = np.mean((price - regressor.expert_predict(frame, rule.expert))[mine] ** 2)
        spread = ((frame["area"][mine] - frame["area"][mine].mean()) ** 2).sum()
        assert area.error == pytest.approx((noise / spread) ** 0.5, rel=0.1)
        assert abs(area.value - slope) < 4 * area.error
        places = {w.level: w.value for w in rule.columns()["place", ""]}
        assert places["south"] - places["north"] == pytest.approx(20.0, abs=2.0)
    assert regressor.rules(frame, price) == rules
    regressor.save(tmp_path / "a.pin")
    assert load(tmp_path / "a.pin").rules() == rules
    assert max(map(len, str(rules).splitlines())) <= 79
    assert list(rules.frame()["rows"]) == [rule.rows for rule in rules]


def test_the_weights_of_explain_are_those_of_the_answers(homes, regressor):
    """Least squares on an expert's answers finds the weights back, centred by the shares."""
    frame, _ = homes
    table = regressor.explain()
    shares = frame["place"].value_counts(normalize=True)
    for m, row in enumerate(table.to_dict("records")):
        said = regressor.expert_predict(frame, m)
        dummies = pd.get_dummies(frame[["place"]]).astype(float)
        design = dummies.assign(area=frame["area"], house=frame["kind"] == table.columns[4][7:])
        fitted = LinearRegression().fit(design, said).coef_
        centred = fitted[:3] - fitted[:3] @ shares[["east", "north", "south"]]
        names = [f"place = {name}" for name in ("east", "north", "south")]
        np.testing.assert_allclose([row[name] for name in names], centred, atol=0.01)
        assert row["area"] == pytest.approx(fitted[3], abs=1e-3)
        mean_answer = row["intercept"] + row["area"] * frame["area"].mean()
        mean_answer += row[table.columns[4]] * design["house"].mean()
        assert mean_answer == pytest.approx(said.mean(), abs=0.05)


def test_attributions_add_up_to_the_answers(homes, regressor, classifier):
    frame, _ = homes
    found = regressor.attributions(frame)
    assert found.shape == (600, 3)
    assert found.feature_names == ["kind", "area", "place"]
    assert found.data[0].tolist() == [frame["kind"][0], frame["area"][0], frame["place"][0]]
    total = found.values.sum(axis=1) + found.base_values
    np.testing.assert_allclose(total, regressor.predict(frame), rtol=1e-4)
    found = classifier.attributions(frame)
    total = found.values.sum(axis=1) + found.base_values
    best = classifier.predict_proba(frame, routing="best")[:, 1]
    sure = np.abs(total) < 8.0
    np.testing.assert_allclose(total[sure], logit(best[sure]), atol=0.01)


def test_attributions_become_an_explanation_of_shap(homes, regressor, monkeypatch):
    frame, _ = homes
    made = SimpleNamespace(Explanation=lambda **parts: SimpleNamespace(**parts))
    monkeypatch.setitem(sys.modules, "shap", made)
    found = regressor.attributions(frame[:50])
    explanation = found.to_shap()
    assert explanation.data.dtype == float  # by which SHAP colours its dots
    levels = sorted(set(frame["place"][:50]))
    assert [levels[int(code)] for code in explanation.data[:, 2]] == list(frame["place"][:50])
    np.testing.assert_array_equal(explanation.data[:, 1], frame["area"][:50])
    assert explanation.display_data[0].tolist() == found.data[0].tolist()
    assert explanation.feature_names == ["kind", "area", "place"]
    np.testing.assert_array_equal(explanation.values, found.values)


@pytest.mark.filterwarnings("ignore")  # of the plots
def test_plots_of_shap_take_an_explanation(homes, regressor):
    shap = pytest.importorskip("shap")
    explanation = regressor.attributions(homes[0][:50]).to_shap()
    assert isinstance(explanation, shap.Explanation)
    for draw in (shap.plots.beeswarm, shap.plots.bar):
        assert draw(explanation, show=False) is not None
    assert shap.plots.waterfall(explanation[0], show=False) is not None
    plt.close("all")


def test_a_row_is_explained_with_what_would_change_it(homes, regressor, classifier):
    frame, _ = homes
    row = frame[3:4]
    told = regressor.explain_row(row)
    shares = regressor.responsibilities(row)[0]
    assert (told.expert, told.probability) == (shares.argmax(), shares.max())
    assert told.change.column == "kind"
    other = row.assign(kind=told.change.becomes)
    assert regressor.assign(other)[0] == told.change.expert != told.expert
    total = told.base + sum(part.amount for part in told.contributions)
    assert total == pytest.approx(regressor.predict(row)[0], rel=1e-4)
    assert max(map(len, str(told).splitlines())) <= 79
    told = classifier.explain_row(row)
    assert told.answer == classifier.predict(row)[0]
    assert sum(told.probabilities.values()) == pytest.approx(1.0)
    if told.change is not None and told.change.column == "area":
        nearer = row.assign(area=float(told.change.becomes))
        assert classifier.assign(nearer)[0] == told.change.expert
    with pytest.raises(ValueError, match="must have one row, but has 2"):
        regressor.explain_row(frame[:2])


def test_arrays_need_rows_to_be_told_about_and_networks_have_no_weights(homes):
    x = homes[0]["area"].to_numpy()[:, None]
    y = np.abs(x - 70.0)
    settings = SETTINGS | {"max_iter": 20, "expert_hidden": (4,)}
    committee = SpecialistRegressor(**settings, expert="mlp").fit(x, np.column_stack([y, -y]))
    with pytest.raises(ValueError, match=r"rules\(X, y\), unless `fit` was given a data frame"):
        committee.rules()
    rules = committee.rules(x, np.column_stack([y, -y]))
    assert all(rule.weights == () for rule in rules)
    assert committee.explain_row(x[:1]).contributions == ()


def test_pictures_have_categories_as_categories(homes, regressor, classifier):
    frame, price = homes
    shown = regressor.plot_partition(frame, price, features=["area", "kind"])
    assert [t.get_text() for t in shown.ax_.get_yticklabels()] == list(shown.ticks[1])
    assert set(shown.ticks[1]) == {"flat", "house"}
    # Every point of the picture is a row with a kind of home: p(m|x) is that of such rows.
    for i, kind in enumerate(shown.ticks[1]):
        asked = regressor.responsibilities(frame.assign(kind=kind)).mean(axis=0)
        np.testing.assert_allclose(shown.responsibilities[i].mean(axis=0), asked, atol=0.02)
    by_rules = regressor.plot_partition(frame)
    assert by_rules.names[0] == "kind"
    assert by_rules.note == "the other columns as in the most typical row"
    bars = classifier.plot_partition(frame, features=["place"])
    assert bars.responsibilities.shape == (3, 2)
    plt.close("all")


@pytest.mark.parametrize("library", [pl.from_pandas, pa.Table.from_pandas], ids=["polars", "Arrow"])
def test_pictures_of_frames_of_numbers(homes, library):
    frame, price = homes
    plain = library(frame[["area"]].assign(age=np.arange(600.0)))
    committee = SpecialistRegressor(**SETTINGS | {"max_iter": 20}).fit(plain, price)
    shown = committee.plot_partition(plain, price)
    assert shown.names == ["area", "age"]
    asked = np.stack([grid.ravel() for grid in np.meshgrid(*shown.grid)], axis=1)
    share = committee.responsibilities(library(pd.DataFrame(asked, columns=["area", "age"])))
    np.testing.assert_allclose(shown.responsibilities.reshape(share.shape), share, atol=1e-5)
    plt.close("all")


def test_what_is_said_to_hold_of_intervals_is_found_to_hold(homes, regressor):
    below = regressor.cdf(*homes)
    assert np.mean(np.abs(below - 0.5) < 0.4) == pytest.approx(0.8, abs=0.06)
    np.testing.assert_allclose(regressor.cdf(homes[0], np.full(600, 1e6)), 1.0)


def test_conditions_are_found_back():
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "a": random.uniform(0, 10, 2000),
            "b": random.choice(list("uvwxyz"), 2000),
            "c": random.random(2000) < 0.5,
            "d": np.where(random.random(2000) < 0.3, np.nan, random.normal(size=2000)),
        }
    )
    encoding = Encoding.learn(frame)
    X, weight = encoding.transform(frame), np.ones(2000)
    cases = {
        "c and d is missing": frame["c"] & frame["d"].isna(),
        "b in {u, z} and not c": frame["b"].isin(["u", "z"]) & ~frame["c"],
        "2 < a ≤ 7 and b ≠ w": frame["a"].between(2, 7) & (frame["b"] != "w"),
        "always": np.ones(2000, bool),
    }
    for text, mine in cases.items():
        found = find_condition(encoding, X, np.asarray(mine), weight)
        assert found.fidelity > 0.97
        held = found.holds(encoding, X)
        assert 2 * (held & mine).sum() / (held.sum() + mine.sum()) == pytest.approx(found.fidelity)
        parts, wanted = (set(t.split(" and ")) for t in (found.text(encoding), text))
        exact = {part for part in wanted if "a ≤" not in part}
        assert {p.replace("{z, u}", "{u, z}") for p in parts} >= exact
    # Exclusive or is no conjunction, and the fidelity says so.
    mine = np.asarray(frame["c"] ^ (frame["a"] > 5))
    assert find_condition(encoding, X, mine, weight).fidelity < 0.75


def test_cuts_are_printed_with_the_digits_that_matter(homes):
    latitude = np.random.default_rng(0).uniform(38.5, 38.6, 400)
    price = np.where(latitude > 38.5437, 1e4 * latitude, 20.0)
    frame = pd.DataFrame({"latitude": latitude})
    committee = SpecialistRegressor(**SETTINGS).fit(frame, price)
    owner = committee.assign(frame)
    for rule in committee.rules():
        sign, cut = re.fullmatch("latitude (>|≤) (.+)", rule.where).groups()
        held = (latitude > float(cut)) == (sign == ">")
        assert (held == (owner == rule.expert)).all()
    order = np.argsort(latitude)
    last = order[int(np.flatnonzero(np.diff(owner[order]))[0])]
    told = committee.explain_row(frame[last : last + 1])
    assert float(told.change.becomes) > float(told.change.value)
    assert (
        committee.assign(frame[last : last + 1] * 0 + float(told.change.becomes))[0] != owner[last]
    )


def test_rows_that_are_rare_have_a_condition():
    X = np.random.default_rng(0).normal(size=(100_000, 3))
    mine = (X[:, 0] > 3.0) & (X[:, 1] > 0.9)
    assert mine.sum() < 40
    found = find_condition(Encoding.of_numbers("abc"), X, mine, np.ones(len(X)))
    assert {term.column for term in found.terms} == {0, 1}
    assert found.fidelity > 0.9


@pytest.mark.parametrize(
    ("low", "high", "cut"), [(1.0, 2.0, 1.5), (0.123, 0.124, 0.123), (1234.0, 1300.0, 1270.0)]
)
def test_cuts_are_short(low, high, cut):
    found = shortest(low, high)
    assert low <= found < high
    assert len(str(found)) <= len(str(cut))


def test_a_row_of_many_classes_fits_80_columns():
    shares = {f"class number {i}": 0.1 for i in range(10)}
    change = Change("the column that tells most", "one value", "another value of some length", 3)
    told = RowExplanation("class number 0", shares, [], 0, 0.5, {}, "", 0.0, (), change)
    lines = str(told).splitlines()
    assert max(map(len, lines)) <= 79
    assert " ".join(map(str.strip, lines)).count("10%") == 10


def test_amounts_of_a_row_stand_below_each_other_whatever_columns_are_called():
    parts = tuple(Contribution(f"c{i}", "1", float(i)) for i in range(12))
    told = RowExplanation("66", {}, [1.0], 0, 1.0, {}, "expected value", 0.0, parts, None)
    lines = [line for line in str(told).splitlines() if line.startswith("         ")]
    assert any("all other columns" in line for line in lines)
    assert len({len(line) for line in lines}) == 1
