"""Every figure can be made from small settings, and its numbers are what they say."""

import json
from importlib import import_module

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.dummy import DummyClassifier

from pinfactory.experiments.controls import EMMixture
from pinfactory.experiments.figures import density, generalisation_gap, regression
from pinfactory.experiments.synthetic_data import (
    CORNERS,
    classification,
    four_gaussians,
    mesh,
    plane,
)
from pinfactory.sweep.store import encode

SMALL = {
    "classification": {
        "tasks": ("blobs",),
        "n_experts": (4,),
        "controls": ("hierarchical mixture by EM",),
        "max_iter": 1000,
        "n_init": 2,
        "longer": 50,
        "method": "both",
    },
    "baseline_comparison": {"sizes": (4,), "max_iter": 200, "n_init": 1, "method": "both"},
    "density": {
        "n_experts": (4,),
        "n_samples": 400,
        "controls": ("one Gaussian", "Gaussians of k-means", "ours without prices"),
        "longer": 50,
        "method": "both",
    },
    "generalisation_gap": {"betas": (1.0, 25.0), "max_iter": 200, "method": "both"},
    "regression": {
        "n_experts": (2,),
        "controls": ("hierarchical mixture by EM",),
        "n_samples": 200,
        "max_iter": 400,
        "n_init": 1,
        "longer": 50,
        "method": "both",
    },
}
_made: dict = {}


@pytest.fixture
def made(request):
    """Return module, results and measures of a figure, made once."""
    name = request.param
    if name not in _made:
        module = import_module(f"pinfactory.experiments.figures.{name}")
        picture = {"resolution": 12} if hasattr(module.Settings, "resolution") else {}
        settings = module.Settings.quick(seeds=2, **picture, **SMALL[name])
        results = {
            piece: json.loads(encode(compute()))
            for piece, compute in module.pieces(settings).items()
        }
        _made[name] = module, results, {m.name: m for m in module.measures(results)}
    return _made[name]


def figures(*names):
    return pytest.mark.parametrize("made", names, indirect=True)


@figures(*SMALL)
def test_a_figure_is_drawn_from_stored_data(made, tmp_path):
    module, results, _ = made
    figure = module.draw(results)
    figure.savefig(tmp_path / "figure.svg")
    shown = [axes for axes in figure.axes if axes.axison]
    assert shown
    for axes in shown:
        assert axes.has_data()
        assert np.isfinite(axes.dataLim.get_points()).all()
        assert axes.get_title() or axes.get_xlabel() or axes.get_ylabel()


@figures(*SMALL)
def test_all_numbers_are_finite_and_have_a_spread_over_seeds(made):
    _, _, measures = made
    assert all(np.isfinite(measure.ours) for measure in measures.values())
    over_seeds = [m for m in measures.values() if "lead of the best" not in m.name]
    assert all(measure.spread is not None for measure in over_seeds)


@figures("classification")
def test_four_linear_experts_solve_the_blobs(made):
    _, _, measures = made
    assert measures["accuracy, blobs, 4 experts"].ours > 0.95
    assert 0.5 < measures["I(X;M), blobs, 4 experts"].ours <= 2.0


@figures("classification")
def test_the_papers_method_stands_beside_ours(made):
    _, results, measures = made
    assert len(results) == 4
    ours = measures["accuracy, blobs, 4 experts"]
    literal = measures["accuracy, blobs, 4 experts, the paper's method"]
    assert ours.paper_method == literal.ours
    assert literal.ours > 0.95
    assert literal.target is None


@figures("classification", "regression", "density")
def test_the_papers_method_also_learns_for_other_numbers_of_steps(made):
    """After 50 of its small steps it has hardly begun."""
    _, _, measures = made
    (short,) = (
        m for m in measures.values() if "after 50 steps" in m.name and "in use" not in m.name
    )
    assert short.name.endswith(", the paper's method")
    name = short.name.replace(" after 50 steps", "")
    assert (short.ours > measures[name].ours) == name.startswith("log-likelihood below")


def test_each_sample_is_left_out_once_and_one_held_out_part_judges_all_folds():
    module = import_module("pinfactory.experiments.figures.classification")
    whole, seen = classification("moons", 100, 0), []

    class Majority(DummyClassifier):
        def fit(self, X, y):
            seen.append(set(map(tuple, X)))
            return super().fit(X, y)

    settings = module.Settings.quick(n_samples=100)
    found = module._fit_folds(settings, "moons", 2, lambda n, random_state: Majority(), 4)
    times = [sum(tuple(row) in rows for rows in seen) for row in whole.X]
    assert times == [3] * len(whole.X)
    assert found["quantity"] == "accuracy of 4 folds"
    # One class is always answered, so that accuracies are the shares of the classes.
    share = np.mean(whole.y_test)
    np.testing.assert_allclose(np.abs(np.subtract(found["accuracy"], 0.5)), abs(share - 0.5))


@figures("classification")
def test_a_control_is_fitted_to_the_same_data(made):
    _, _, measures = made
    scores = []
    for seed in range(2):
        split = classification("blobs", 1024, seed)
        model = EMMixture(4, True, seed).fit(split.X, split.y)
        scores.append(np.mean(model.predict(split.X_test) == split.y_test))
    found = measures["accuracy, blobs, control: hierarchical mixture by EM"]
    assert found.ours == pytest.approx(np.mean(scores))
    assert found.paper_method is None


def test_each_method_alone_has_its_own_pieces():
    names = {
        method: list(
            regression.pieces(regression.Settings.quick(n_experts=(2,), controls=(), method=method))
        )
        for method in ("ours", "paper", "both")
    }
    assert names["both"] == names["ours"] + names["paper"]
    assert names["paper"] == ["2 experts, the paper's method"]


@figures("baseline_comparison")
def test_baselines_are_scikit_learns_own(made):
    from sklearn.tree import DecisionTreeClassifier

    _, _, measures = made
    scores = []
    for seed in range(2):
        split = classification("circles", 1024, seed)
        tree = DecisionTreeClassifier(max_depth=4, random_state=seed).fit(split.X, split.y)
        scores.append(tree.score(split.X_test, split.y_test))
    assert measures["accuracy, decision tree, depth 4"].ours == pytest.approx(np.mean(scores))


@figures("density")
def test_four_experts_come_close_to_the_true_density(made):
    _, _, measures = made
    ours = measures["log-likelihood below the truth's in %, 4 experts"].ours
    assert 0 < ours < 3.0
    # k-means finds the four corners as well; one Gaussian misses what four see.
    below = "log-likelihood below the truth's in %, control: "
    assert 0 < measures[f"{below}Gaussians of k-means"].ours < 6.0
    assert measures[f"{below}one Gaussian"].ours > 20.0


def test_the_true_density_is_that_of_four_gaussians():
    X = np.array([[0.3, -0.2], [1.0, 1.0]])
    parts = [np.prod(norm(mean, 0.15**0.5).pdf(X), axis=1) for mean in CORNERS]
    np.testing.assert_allclose(np.exp(density.true_log_density(X)), np.mean(parts, axis=0))


def test_samples_of_the_four_gaussians_have_their_moments():
    X = four_gaussians(200_000, 0)
    np.testing.assert_allclose(X.mean(axis=0), 0.0, atol=0.02)
    np.testing.assert_allclose(np.cov(X.T), 1.15 * np.eye(2), atol=0.02)


def test_the_best_possible_r2_is_what_the_noise_leaves():
    settings = regression.Settings.quick()
    x, y = regression._draw_data(settings, 100_000, 0)
    np.testing.assert_allclose(np.std(y - regression.curve(x)), settings.noise, rtol=0.02)


@pytest.mark.parametrize("task", ["moons", "circles", "blobs"])
def test_a_fifth_of_a_task_is_held_out_and_the_seed_decides_all(task):
    split, same, other = (classification(task, 1024, seed) for seed in (1, 1, 2))
    assert (len(split.X), len(split.X_test)) == (819, 205)
    assert set(split.y) == {0, 1}
    np.testing.assert_array_equal(split.X, same.X)
    assert not np.array_equal(split.X, other.X)


def test_a_mesh_runs_along_the_first_axis_first():
    axes = plane(np.array([[0.0, 0.0], [1.0, 2.0]]), 3)
    np.testing.assert_allclose(axes[1], [-0.16, 1.0, 2.16])
    np.testing.assert_allclose(mesh(axes)[:3, 1], -0.16)


def test_the_gap_is_judged_by_ranks_within_a_seed():
    weights = {"bound": [0.7, 0.9], "noisy gap": [0.0, 0.8], "divergence": [5.0, 9.0]}
    piece = {"bits": [0.1, 0.9], "gap": [0.0, 0.3], "formula": [0.2, 0.2], **weights}
    weights = {"bound": [0.5, 0.6], "noisy gap": [0.1, 0.7], "divergence": [4.0, 7.0]}
    other = {"bits": [0.5, 0.2], "gap": [0.1, 0.1], "formula": [0.2, 0.2], **weights}
    found = {m.name: m.ours for m in generalisation_gap.measures({"a": piece, "b": other})}
    # In both seeds more bits have the larger gap; one gap of four is above the formula.
    assert found["rank correlation of bits and gap"] == pytest.approx(1.0)
    assert found["share of gaps below the formula"] == 0.75
    assert found["gap, most bits"] == pytest.approx(0.15)
    # The weights' divergence ranks the second seed rightly and the first one wrongly.
    assert found["rank correlation of the weights' divergence and gap"] == pytest.approx(0.0)
    assert found["least bound of the weights"] == pytest.approx(0.55)
    assert found["share of these gaps below their bound"] == 0.75
