import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone

from pinfactory import SpecialistClassifier, SpecialistRegressor, load

QUICK = {
    **{"n_experts": 2, "max_iter": 300, "random_state": 0},
    **{"start": "tree", "early_stopping": False},
}


@pytest.fixture(scope="module")
def homes():
    """Prices that depend on a number with gaps and a category; one category occurs once."""
    random = np.random.default_rng(0)
    area, place = random.uniform(20, 100, 300), random.choice(["old", "new", "far"], 300)
    price = 3.0 * area + 50.0 * (place == "new") + random.normal(0, 5, 300)
    frame = pd.DataFrame({"area": area, "place": place, "lift": random.random(300) < 0.5})
    frame.loc[::10, "area"] = np.nan
    frame.loc[7, "place"], price[7] = "once", -100.0
    return frame, price


@pytest.fixture(scope="module")
def regressor(homes):
    return SpecialistRegressor(**QUICK).fit(*homes)


def test_a_frame_is_learned_from_and_asked_in_any_library(homes, regressor, tmp_path):
    frame, price = homes
    known = frame["area"].notna()
    assert regressor.score(frame[known].drop(7), np.delete(price[known], 6)) > 0.9
    assert list(regressor.feature_names_in_) == ["area", "place", "lift"]
    assert regressor.n_features_in_ == 3
    expected = regressor.predict(frame)
    for other in (
        pl.from_pandas(frame),
        pa.Table.from_pandas(frame),
        frame[["lift", "place", "area"]],
    ):
        np.testing.assert_array_equal(regressor.predict(other), expected)
    regressor.save(tmp_path / "homes.pin")
    loaded = load(tmp_path / "homes.pin")
    np.testing.assert_array_equal(loaded.predict(frame), expected)
    assert loaded.encoding_ == regressor.encoding_
    np.testing.assert_allclose(
        loaded.score_samples(frame, price), regressor.score_samples(frame, price)
    )


def test_a_category_that_occurs_once_has_no_weight(regressor):
    weights = [weight for rule in regressor.rules() for weight in rule.weights]
    assert not any(weight.level == "once" for weight in weights)
    assert max(abs(weight.value) for weight in weights) < 60.0


def test_a_row_is_explained_with_the_values_it_has(homes, regressor):
    odd = pd.DataFrame({"area": [np.nan], "place": ["Mars"], "lift": [None]})
    with pytest.warns(UserWarning, match="not seen in fit") as warned:
        told = regressor.explain_row(odd)
    assert len(warned) == 1
    shown = {part.column: part.value for part in told.contributions}
    assert shown == {"area": "(missing)", "place": "Mars (unknown)", "lift": "(missing)"}
    if told.change is not None:
        assert told.change.value == shown[told.change.column]


def test_frames_of_numbers_are_what_arrays_are(homes):
    frame = homes[0][["area", "lift"]].fillna(50.0).astype(float)
    labels = np.where(frame["area"] > 60, "large", "small")
    named = SpecialistClassifier(**QUICK).fit(frame, labels)
    array = SpecialistClassifier(**QUICK).fit(frame.to_numpy(), labels)
    np.testing.assert_array_equal(named.predict_proba(frame), array.predict_proba(frame.to_numpy()))
    with pytest.raises(ValueError, match="Feature names must be in the same order"):
        named.predict(frame[["lift", "area"]])
    with pytest.warns(UserWarning, match="missing values in column 'area'"):
        named.predict(frame.assign(area=np.nan))
    # A refit forgets the frame.
    named.fit(frame.to_numpy(), labels)
    assert not hasattr(named, "encoding_")
    assert not hasattr(named, "feature_names_in_")


def test_arrays_are_refused_after_a_frame_of_categories(homes, regressor):
    with pytest.raises(ValueError, match="must be one with the columns area, place, lift"):
        regressor.predict(np.zeros((2, 3)))


def test_batches_of_frames_and_pipelines(homes):
    frame, price = homes
    learner = clone(SpecialistRegressor(**QUICK))
    for start in (0, 100, 200):
        learner.partial_fit(frame[start : start + 100], price[start : start + 100])
    assert learner.predict(frame).shape == (300,)


def test_a_batch_tells_which_columns_the_first_has_left_out(homes):
    frame, price = homes
    days = np.datetime64("2024-01-01") + np.arange(300)
    late = frame.assign(day=days, place=np.sort(frame["place"]))
    learner = clone(SpecialistRegressor(**QUICK))
    learner.partial_fit(late[:20], price[:20])  # of one place, and one month
    learner.partial_fit(late[:20], price[:20])
    with pytest.warns(UserWarning, match=r"differed in it: day \(month\), place. Begin with rows"):
        learner.partial_fit(late[60:], price[60:])


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT])
def test_labels_that_are_missing_are_refused(homes, missing):
    labels = np.where(homes[1] > 200, np.array("dear", object), missing)
    with pytest.raises(ValueError, match=f"label for every row, but has {missing}"):
        SpecialistClassifier().fit(homes[0], labels)


@pytest.mark.parametrize("label", [datetime.date(2020, 1, 1), 1, ("a", "b")])
def test_labels_of_other_kinds_are_refused_with_how_to_convert_them(homes, label):
    labels = np.full(len(homes[1]), "dear", object)
    labels[3] = label
    with pytest.raises(ValueError, match=rf"{type(label).__name__}.*\): .*y\.astype"):
        SpecialistClassifier().fit(homes[0], labels)


def test_rules_are_forgotten_when_more_is_learned(homes):
    frame, price = homes
    learner = SpecialistRegressor(**QUICK).fit(frame, price)
    with pytest.raises(ValueError, match="both samples and targets"):
        learner.rules(frame)
    known = learner.rules()
    learner.partial_fit(frame, -price)
    with pytest.raises(ValueError, match="and nothing was learned since"):
        learner.rules()
    assert "fitted to a table" in learner.card()
    assert learner.rules(frame, -price) != known


def test_a_rare_indicator_of_an_array_is_learned_as_that_of_a_frame():
    random = np.random.default_rng(0)
    area, rare = random.uniform(20, 120, 400), np.zeros(400)
    rare[:12] = 1.0
    price = 3.0 * area + 50.0 * rare + random.normal(0, 40, 400)
    frame = pd.DataFrame({"area": area, "garden": np.where(rare > 0, "yes", "no")})
    array = np.column_stack([area, 10.0 * rare])
    settings = {"start": "tree", "max_iter": 100, "random_state": 0}
    models = [SpecialistRegressor(2, **settings).fit(x, price) for x in (frame, array)]
    found = [model.predict(x) for model, x in zip(models, (frame, array), strict=True)]
    # Divided by its own deviation it would be shrunk less.
    np.testing.assert_allclose(*found, rtol=1e-3)
