import json

import numpy as np
import pytest
from matplotlib.figure import Figure

from pinfactory.experiments.rate_utility_exact import Settings, draw, frontier, run, summary

SMALL = Settings(n_groups=2, group_size=2, n_experts=(1, 2), n_beta=8, n_ratio=4, n_restarts=2)


@pytest.fixture(scope="module")
def data():
    return run(SMALL)


def test_the_table_prefers_the_exact_answer_then_its_group():
    np.testing.assert_array_equal(
        SMALL.utility(), [[1, 0.5, 0, 0], [0.5, 1, 0, 0], [0, 0, 1, 0.5], [0, 0, 0.5, 1]]
    )


def test_the_quick_preset_is_smaller_than_the_fine_one():
    quick, fine = Settings.quick(seed=3), Settings.fine()
    assert quick.n_beta * quick.n_ratio < fine.n_beta * fine.n_ratio
    assert quick.seed == 3


def test_data_survive_json(data):
    assert json.loads(json.dumps(data))["curves"] == data["curves"]
    assert [len(curve["expected_utility"]) for curve in data["curves"]] == [8, 8 * 4]


def test_no_division_of_labour_beats_the_rate_utility_function(data):
    # Every β gives a line above the rate–utility function, whatever processes the information.
    one, two = data["curves"]
    bits = np.add(two["information_selector"], two["information_experts"])
    nats = bits[:, None] * np.log(2)
    line = np.array(one["objective"]) + nats / np.array(one["beta_expert"])
    assert (np.array(two["expected_utility"])[:, None] <= line + 1e-9).all()


def test_constant_specialists_reach_the_utility_of_their_group(data):
    # Two experts who always give one answer of their group: right half of the time, else worth ½.
    row = summary(data)[1]
    assert row["experts"] == 2
    assert row["used"] == pytest.approx(2.0, abs=1e-3)
    assert row["0.01 bit"] == pytest.approx(0.75, abs=0.05)
    assert row["1 bit"] == pytest.approx(1.0, abs=1e-2)


def test_the_frontier_is_the_rising_concave_hull():
    bits = np.array([0.0, 1.0, 0.0, 2.0, 1.0, 3.0, 1.5])
    utility = np.array([0.0, 0.8, 0.1, 1.0, 0.2, 0.9, 0.85])
    x, y = frontier(bits, utility)
    np.testing.assert_array_equal(x, [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(y, [0.1, 0.8, 1.0])


def test_the_figure_names_its_axes_and_labels_every_curve(data, tmp_path):
    figure = draw(data)
    assert isinstance(figure, Figure)
    figure.savefig(tmp_path / "figure.png")
    left, middle, right = figure.axes[:3]
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in (left, middle, right))
    assert {text.get_text() for text in middle.texts} >= {"1 expert", "2"}
