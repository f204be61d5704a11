"""Committees with more than one level of selection."""

import numpy as np
import pytest
from sklearn.base import clone

import pinfactory
from pinfactory import SpecialistClassifier, SpecialistRegressor, rate_utility_curve
from pinfactory.estimators.linear_tree import place
from pinfactory.estimators.paths import find_paths
from pinfactory.estimators.splits import grow
from pinfactory.estimators.table import Table

X = np.random.default_rng(0).uniform(-1, 1, size=(240, 2))
# A roof of four planes: two of them meet at x₀ = 0, and on either side two meet at x₁ = 0.
Y = np.abs(X[:, 0]) * 2.0 + np.where(X[:, 0] > 0, 1.0, 0.5) * np.abs(X[:, 1])


@pytest.fixture(scope="module")
def regressor():
    return SpecialistRegressor((2, 3), start="tree", max_iter=200, random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def classifier():
    labels = np.where(X[:, 0] * X[:, 1] > 0, "even", "odd")
    settings = {"selector": "linear", "start": "random", "early_stopping": False}
    return SpecialistClassifier((2, 2), max_iter=50, random_state=0, **settings).fit(X, labels)


def test_bits_of_every_level_are_measured_within_what_it_can_process(regressor):
    bits = regressor.information_
    first, second = bits.selectors
    assert 0.0 < first <= 1.0
    assert 0.0 < second <= np.log2(3)
    assert bits.selector == pytest.approx(first + second)
    assert bits.responsibility.shape == bits.per_expert.shape == (6,)
    assert "level 2" in repr(bits)


def test_responsibilities_are_those_of_the_experts_of_the_last_level(regressor, classifier):
    for committee, n_experts in ((regressor, 6), (classifier, 4)):
        share = committee.responsibilities(X)
        assert committee.n_experts_ == n_experts
        assert share.shape == (len(X), n_experts)
        np.testing.assert_allclose(share.sum(axis=1), 1.0, rtol=1e-5)
        measured = committee.information_.responsibility
        np.testing.assert_allclose(share.mean(axis=0), measured, atol=1e-4)


def test_a_tree_start_divides_what_one_line_cannot_describe(regressor):
    assert regressor.effective_experts_ > 2.0
    assert regressor.score(X, Y) > 0.9
    assert "experts are in use" in regressor.verdict_


def test_answers_of_the_best_expert_are_those_of_the_expert_itself(regressor, classifier):
    for committee in (regressor, classifier):
        best, owner = committee.predict(X, routing="best"), committee.assign(X)
        for m in np.unique(owner):
            mine = owner == m
            own = committee.expert_predict(X[mine], int(m))
            if committee is classifier:
                assert (best[mine] == own).all()
            else:
                np.testing.assert_allclose(best[mine], own, rtol=1e-5)


def test_the_density_is_the_mixture_of_all_experts(regressor):
    mean = sum(
        regressor.responsibilities(X)[:, m] * regressor.expert_predict(X, m) for m in range(6)
    )
    np.testing.assert_allclose(regressor.predict(X), mean, rtol=1e-3, atol=1e-4)
    assert np.isfinite(regressor.score_samples(X, Y)).all()
    assert ((regressor.cdf(X, Y) >= 0) & (regressor.cdf(X, Y) <= 1)).all()


def test_a_file_holds_all_levels(classifier, tmp_path):
    classifier.save(tmp_path / "committee")
    loaded = pinfactory.load(tmp_path / "committee")
    assert loaded.n_experts == (2, 2)
    np.testing.assert_array_equal(loaded.predict_proba(X), classifier.predict_proba(X))
    np.testing.assert_array_equal(loaded.responsibilities(X), classifier.responsibilities(X))


def test_explanations_are_about_the_experts_of_the_last_level(regressor):
    in_use = set(regressor.information_.in_use.tolist())
    assert set(regressor.explain()["expert"]) == in_use
    rules = regressor.rules(X, Y).rules
    assert {rule.expert for rule in rules} <= in_use
    assert regressor.explain_row(X[:1]).expert == regressor.assign(X[:1])[0]


def test_every_row_takes_one_way_through_the_gates_of_all_levels(regressor):
    paths = find_paths(regressor, X)
    available = np.flatnonzero(regressor.state_.model.last_available)
    taken = np.stack([paths[m].holds() for m in available])
    assert len(paths) == 6
    np.testing.assert_array_equal(taken.sum(axis=0), 1)
    # Most rows come to the expert at the end of their way.
    assert np.mean(available[taken.argmax(axis=0)] == regressor.assign(X)) > 0.8


def test_learning_goes_on_with_the_same_levels(classifier):
    labels = classifier.predict(X)
    further = clone(classifier).partial_fit(X, labels, classes=classifier.classes_)
    before = further.n_iter_
    assert further.partial_fit(X, labels).n_iter_ > before
    with pytest.raises(ValueError, match=r"`n_experts` must stay \(2, 2\)"):
        further.set_params(n_experts=4).partial_fit(X, labels)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_experts": ()}, "`n_experts` must be an integer"),
        ({"n_experts": (2, 0)}, "`n_experts` must be an integer of at least 1"),
        ({"selector_bits": 1.0}, "`selector_bits` must be None for more than one level"),
        ({"expert_bits": 1.0}, "`expert_bits` must be None for more than one level"),
    ],
)
def test_what_levels_cannot_have_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SpecialistRegressor(**{"n_experts": (2, 2)} | settings).fit(X, Y)


def test_what_needs_one_level_says_so(regressor):
    with pytest.raises(ValueError, match="`to_sql` needs one level of selection"):
        regressor.to_sql("rows")
    with pytest.raises(ValueError, match="one level of selection"):
        rate_utility_curve(regressor, X, Y)


def test_a_graph_needs_one_level(regressor):
    pytest.importorskip("onnx")
    with pytest.raises(ValueError, match="`to_onnx` needs one level of selection"):
        regressor.to_onnx("committee.onnx")


def test_rows_are_placed_where_the_leaves_of_a_tree_begin():
    table = Table(X.astype(np.float32), Y[:, None], np.ones(len(X), np.float32))
    tree = grow(table, 4)
    assert tree.n_leaves == 4
    leaf, placed = tree.assign(table.x, 4), place(tree, 4, (2, 2), table.x)
    first = tree.assign(table.x, 2)
    np.testing.assert_array_equal(placed // 2, first)
    # Each branch has the models of the leaves that it grew into.
    for m in range(2):
        branch = tree.branch(2, m)
        assert branch.n_leaves == len(np.unique(leaf[first == m]))
        named = [tree.leaves(4)[n] for n in np.unique(leaf[first == m])]
        assert all(any(node is other for other in named) for node in branch.leaves(4))


def test_four_times_four_experts_divide_sixteen_planes_on_both_levels():
    x = np.random.default_rng(0).uniform(-1, 1, size=(600, 2))
    y = np.abs(np.abs(x) - 0.5) @ [4.0, 2.0]
    settings = {"start": "tree", "max_iter": 100, "random_state": 0}
    four, committee = (SpecialistRegressor(n, **settings).fit(x, y) for n in (4, (4, 4)))
    assert committee.n_experts_ == 16
    # More than one level of four has.
    assert committee.effective_experts_ > 4.0
    first, second = committee.information_.selectors
    assert 0.0 < first <= 2.0
    assert 0.0 < second <= 2.0
    assert committee.score(x, y) > four.score(x, y) + 0.1
