import json

import numpy as np
import pytest

from pinfactory.experiments.figures.rate_utility_exact import (
    Settings,
    draw,
    frontier,
    measures,
    pieces,
)
from pinfactory.sweep.store import encode

SMALL = Settings(
    seeds=2, n_groups=2, group_size=2, n_experts=(1, 2), n_beta=8, n_ratio=4, n_restarts=2
)


@pytest.fixture(scope="module")
def results():
    return {name: json.loads(encode(compute())) for name, compute in pieces(SMALL).items()}


def test_the_table_prefers_the_exact_answer_then_its_group():
    np.testing.assert_array_equal(
        SMALL.utility(), [[1, 0.5, 0, 0], [0.5, 1, 0, 0], [0, 0, 1, 0.5], [0, 0, 0.5, 1]]
    )


def test_the_quick_preset_is_smaller_than_the_other():
    quick, paper = Settings.quick(), Settings.paper()
    assert quick.n_beta * quick.n_ratio * quick.seeds < paper.n_beta * paper.n_ratio * paper.seeds


def test_there_is_a_piece_for_every_number_of_experts_and_seed(results):
    sizes = [len(piece["expected_utility"]) for name, piece in results.items() if name != "table"]
    assert sizes == [8, 8, 8 * 4, 8 * 4]


def test_constant_specialists_reach_the_utility_of_their_group(results):
    # Two experts who always give one answer of their group: right half of the time, else worth ½.
    numbers = {measure.name: measure for measure in measures(results)}
    assert numbers["utility for 0.01 bit of an expert, 2 experts"].ours == pytest.approx(
        0.75, abs=0.05
    )
    assert numbers["utility for 1 bit of an expert, 2 experts"].ours == pytest.approx(1, abs=1e-2)


def test_no_division_of_labour_beats_the_rate_utility_function(results):
    (excess,) = [m for m in measures(results) if m.target is not None]
    assert excess.ours <= 1e-9
    assert excess.passed


def test_an_impossible_division_of_labour_would_be_noticed(results):
    cheat = json.loads(json.dumps(results))
    cheat["2 experts, seed 0"]["expected_utility"][0] += 0.3
    (excess,) = [m for m in measures(cheat) if m.target is not None]
    assert not excess.passed


def test_the_frontier_is_the_rising_concave_hull():
    bits = np.array([0.0, 1.0, 0.0, 2.0, 1.0, 3.0, 1.5])
    utility = np.array([0.0, 0.8, 0.1, 1.0, 0.2, 0.9, 0.85])
    x, y = frontier(bits, utility)
    np.testing.assert_array_equal(x, [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(y, [0.1, 0.8, 1.0])


def test_the_figure_names_its_axes_and_labels_every_curve(results, tmp_path):
    figure = draw(results)
    figure.savefig(tmp_path / "figure.png")
    left, middle, right = figure.axes[:3]
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in (left, middle, right))
    assert {text.get_text() for text in middle.texts} >= {"1 expert", "2"}
