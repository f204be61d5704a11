"""Pictures of mixtures."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy.stats import norm

from pinfactory import DensityDisplay, SpecialistMixture
from pinfactory.plotting import expert_colours


@pytest.fixture(scope="module")
def data() -> np.ndarray:
    random = np.random.default_rng(0)
    return random.normal(size=(300, 3)) + 5.0 * random.integers(2, size=(300, 1))


@pytest.fixture(scope="module")
def mixtures(data: np.ndarray) -> dict[int, SpecialistMixture]:
    return {d: SpecialistMixture(4, random_state=0).fit(data[:, :d]) for d in (1, 2, 3)}


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_density_that_is_drawn_has_mass_one(data, mixtures, ax, d) -> None:
    display = mixtures[d].plot_density(data[:, :d], grid_resolution=60, ax=ax)
    assert display.ax_ is ax
    area = np.prod([axis[1] - axis[0] for axis in display.grid])
    assert display.density.sum() * area == pytest.approx(1.0, abs=0.03)
    assert ("integrated out" in ax.get_title(loc="left")) == (d == 3)


def test_other_features_are_integrated_out(data, mixtures, ax) -> None:
    display = DensityDisplay.from_estimator(mixtures[3], data, features=(2,), ax=ax)
    (line, *_) = ax.lines
    truth = 0.5 * (norm(0).pdf(display.grid[0]) + norm(5).pdf(display.grid[0]))
    np.testing.assert_allclose(line.get_ydata(), truth, atol=0.03)


def test_pictures_take_tables_and_names_of_features(data, ax) -> None:
    table = pd.DataFrame(data, columns=["a", "b", "c"])
    mixture = SpecialistMixture(4, random_state=0).fit(table)
    mixture.plot_density(table, features=("c", "a"), ax=ax)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("c", "a")
    other = Figure().subplots()
    mixture.plot_partition(table, features=["b"], ax=other)
    assert other.get_xlabel() == "b"
    with pytest.raises(ValueError, match="`features` must be one or two"):
        mixture.plot_density(table, features=("height",))


def test_samples_have_the_colour_of_the_expert_who_answers_for_them(data, mixtures, ax) -> None:
    mixture = mixtures[2]
    mixture.plot_partition(data[:, :2], grid_resolution=20, ax=ax)
    (dots,) = ax.collections
    expected = expert_colours(4)[mixture.predict(data[:, :2])]
    np.testing.assert_allclose(dots.get_facecolors()[:, :3], expected)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert len(labels) == np.sum(mixture.weights_ > 0) == 2


def test_a_mixture_draws_the_bits_it_processes(data, mixtures) -> None:
    try:
        display = mixtures[2].plot_information()
        stages = [bar.get_width() for bar in display.axes_[0].patches]
        information = mixtures[2].information_
        np.testing.assert_allclose(stages, [information.selector, information.experts])
    finally:
        plt.close("all")
