import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from pinfactory import InformationDisplay, PartitionDisplay, SpecialistClassifier
from pinfactory.core.information import Information
from pinfactory.estimators import RateUtilityCurve
from pinfactory.plotting import expert_colours
from pinfactory.plotting._grid import reach


class Halves(BaseEstimator):
    """Two experts, of whom one answers on the left of zero and the other on the right."""

    n_experts_ = 2

    def fit(self, X, y=None):
        return self

    def __sklearn_is_fitted__(self):
        return True

    def responsibilities(self, X):
        self.asked = X
        right = np.asarray(X)[:, 0] > 0
        return np.column_stack([~right, right]).astype(float)


class Classes(ClassifierMixin, Halves):
    classes_ = np.array(["a", "b"])

    def predict_proba(self, X):
        p = expit(np.asarray(X)[:, 0] - 0.5)
        return np.column_stack([1 - p, p])


class Slopes(RegressorMixin, Halves):
    def expert_predict(self, X, m):
        return (2 * m - 1) * np.asarray(X)[:, 0]

    def predict(self, X, *, return_std):
        mean = np.abs(np.asarray(X)[:, 0])
        return mean, np.full(len(mean), 0.5)


@pytest.fixture
def X(rng):
    return rng.uniform(-2, 2, size=(50, 3))


@pytest.fixture
def ax():
    return Figure().subplots()


def test_importing_the_package_does_not_import_pyplot():
    code = "import sys, pinfactory; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_plane_has_the_colour_of_whoever_answers_there(X, ax):
    y = np.where(X[:, 0] > 0.5, "b", "a")
    display = PartitionDisplay.from_estimator(Classes(), X, y, grid_resolution=40, ax=ax)
    assert display.ax_ is ax
    assert display.figure_ is ax.figure
    colours = np.asarray(ax.images[0].get_array())
    expected = 0.5 + 0.5 * expert_colours(2)
    np.testing.assert_allclose(colours[:, 0], np.tile(expected[0], (40, 1)))
    np.testing.assert_allclose(colours[:, -1], np.tile(expected[1], (40, 1)))
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    share = np.mean(X[:, 0] > 0)
    assert labels == [
        "decision boundary",
        "class a",
        "class b",
        f"expert 0: {1 - share:.0%}",
        f"expert 1: {share:.0%}",
    ]


def test_the_decision_boundary_is_where_two_classes_are_equally_probable(X, ax):
    PartitionDisplay.from_estimator(Classes(), X, ax=ax)
    (contour,) = (c for c in ax.collections if isinstance(c, QuadContourSet))
    (path,) = contour.get_paths()
    np.testing.assert_allclose(path.vertices[:, 0], 0.5, atol=1e-3)


def test_other_features_are_held_at_their_median(X, ax):
    X[:, 1] *= 100
    committee = Halves()
    display = PartitionDisplay.from_estimator(committee, X, features=(0, 2), ax=ax)
    assert display.names == ["x0", "x2"]
    assert "median" in ax.get_title(loc="left")
    asked = []
    committee.responsibilities = lambda X: asked.append(X) or np.ones((len(X), 1))
    PartitionDisplay.from_estimator(committee, X, features=(0, 2), ax=ax)
    np.testing.assert_allclose(asked[0][:, 1], np.median(X[:, 1]))


@pytest.mark.parametrize(
    ("values", "ends"),
    [([0.0, 10.0], [0.0, 10.8]), ([1.0, 11.0], [0.2, 11.8]), ([-1.0, 9.0], [-1.8, 9.8])],
)
def test_pictures_of_what_is_never_negative_do_not_go_below_zero(values, ends):
    np.testing.assert_allclose(reach(np.asarray(values), 5)[[0, -1]], ends)


def test_features_may_be_named_and_tables_stay_tables(X, ax):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    committee = Halves()
    committee.feature_names_in_ = np.array(["a", "b", "c"])
    PartitionDisplay.from_estimator(committee, frame, features=["c", "a"], ax=ax)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("c", "a")
    assert list(committee.asked.columns) == ["a", "b", "c"]


@pytest.mark.parametrize("features", [(0, 7), (0, 0), (0, 1, 2), ("height",), ()])
def test_features_that_cannot_be_shown_are_refused(X, features):
    with pytest.raises(ValueError, match="`features` must be one or two"):
        PartitionDisplay.from_estimator(Halves(), X, features=features)


def test_one_feature_shows_the_regression_its_band_and_every_expert(X, ax):
    x = X[:, :1]
    display = PartitionDisplay.from_estimator(Slopes(), x, np.abs(x[:, 0]), ax=ax)
    (line,) = ax.lines
    np.testing.assert_allclose(line.get_ydata(), np.abs(line.get_xdata()))
    low, high = ax.get_ylim()
    assert low < -1.0 + np.abs(display.grid[0]).min()
    assert high > 1.0 + np.abs(display.grid[0]).max()
    assert display.curves["experts"].shape == (2, 200)


def test_one_feature_of_a_classifier_shows_shares_and_probabilities(X, ax):
    PartitionDisplay.from_estimator(Classes(), X[:, :1], ax=ax)
    curve = ax.lines[0]
    assert curve.get_label() == "p(class b)"
    np.testing.assert_allclose(curve.get_ydata(), expit(curve.get_xdata() - 0.5))


def test_two_features_of_a_regressor_show_lines_of_equal_value(X, ax):
    PartitionDisplay.from_estimator(Slopes(), X, X[:, 0], ax=ax)
    assert any(isinstance(c, QuadContourSet) for c in ax.collections)


INFORMATION = Information(
    selectors=(1.2,),
    experts=0.3,
    overall=0.9,
    per_expert=np.array([0.5, 0.1, 0.7]),
    responsibility=np.array([0.6, 0.398, 0.002]),
    effective_experts=2.0,
)


def test_bars_show_the_bits_of_every_stage_and_expert(ax):
    display = InformationDisplay(information=INFORMATION).plot(ax=ax)
    shown = [[bar.get_width() for bar in panel.patches] for panel in display.axes_]
    np.testing.assert_allclose(shown[0], [1.2, 0.3, 0.9])
    np.testing.assert_allclose(shown[1], [60.0, 39.8, 0.2])
    np.testing.assert_allclose(shown[2], [0.5, 0.1, 0.7])
    assert [t.get_text() for t in display.axes_[2].texts] == ["0.50", "0.10", "0.70 (idle)"]


def test_information_needs_the_place_of_a_subplot():
    free = Figure().add_axes((0, 0, 1, 1))
    with pytest.raises(ValueError, match="must be a subplot"):
        InformationDisplay(information=INFORMATION).plot(ax=free)


def test_a_committee_draws_itself(X):
    committee = SpecialistClassifier(n_experts=2, n_init=1, max_iter=1, random_state=0)
    committee.fit(X, X[:, 0] > 0)
    try:
        assert committee.plot_partition(X, X[:, 0] > 0, grid_resolution=20).figure_ is not None
        for nothing in (0.0, X[:, 0], X[:0]):
            with pytest.raises(ValueError, match="`X` must hold rows of features"):
                committee.plot_partition(nothing)
        assert committee.plot_information().information is committee.information_
        assert len(plt.get_fignums()) == 2
    finally:
        plt.close("all")


def test_the_frontier_of_a_curve_never_falls(ax):
    bits = np.array([0.0, 0.0, 1.0, 1.0, 2.0, 2.0])
    score = np.array([0.5, 0.5, 0.9, 0.8, 0.7, 0.8])
    nothing = np.zeros(6)
    curve = RateUtilityCurve(
        beta_selector=bits,
        beta_expert=nothing,
        n_experts=np.array([1, 1, 2, 2, 2, 2]),
        seed=np.array([0, 1, 0, 1, 0, 1]),
        score=score,
        expected_utility=nothing,
        information_selector=bits,
        information_experts=nothing,
        information_overall=nothing,
        score_name="accuracy",
    )
    assert curve.plot(ax) is ax
    (frontier,) = ax.lines
    np.testing.assert_allclose(frontier.get_ydata(), [0.5, 0.85, 0.85, 0.85])
    np.testing.assert_allclose(frontier.get_xdata()[:3], [0.0, 1.0, 2.0])
