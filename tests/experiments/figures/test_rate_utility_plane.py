"""The plane: replicas are judged rightly, the frontier is exact, the explorer shows the cells."""

import json

import numpy as np
import pytest
from scipy.stats import entropy

from pinfactory.experiments.figures import budgets
from pinfactory.experiments.figures._explorer import _boundary, pack, unpack
from pinfactory.experiments.figures.rate_utility_plane import (
    Settings,
    _beyond,
    draw,
    explore,
    measures,
    pieces,
)
from pinfactory.sweep.store import encode

SMALL = Settings(
    seeds=2,
    n_experts=(1, 4),
    beta_selector=(0.3, 25.0),
    beta_expert=(5.0,),
    selector_bits=(0.4, 1.0),
    expert_bits=(0.1,),
    steps=2500,
    resolution=10,
    method="both",
)


@pytest.fixture(scope="module")
def results():
    return {name: json.loads(encode(compute())) for name, compute in pieces(SMALL).items()}


def test_a_dear_selector_is_at_chance_and_a_cheap_one_solves_the_circles(results):
    dear, cheap = results["prices, 4 experts"]["cells"]
    assert max(dear["selector_bits"]) < 0.05
    assert max(dear["accuracy"]) < 0.7
    assert min(cheap["accuracy"]) > 0.9
    assert 0.8 < min(cheap["selector_bits"]) <= 2.0


def test_the_papers_method_is_worse_after_as_many_steps(results):
    rows = {row.name: row for row in measures(results)}
    ours = rows["accuracy, best of 4 experts"]
    assert ours.paper_method == rows["accuracy, best of 4 experts, the paper's method"].ours
    assert ours.paper_method < ours.ours
    assert "budgets, 4 experts, the paper's method" not in results


def test_budgets_reach_what_prices_do_not(results):
    small, _ = results["budgets, 4 experts"]["cells"]
    np.testing.assert_allclose(small["selector_bits"], 0.4, atol=0.12)


def test_the_frontier_is_the_rate_distortion_function_of_the_labels(results):
    frontier = results["prices, 1 experts"]["frontier"]
    share = np.bincount(results["prices, 1 experts"]["samples"]["y"])
    bits, right = np.asarray(frontier["bits"]), np.asarray(frontier["right"])
    # For a binary source and Hamming distortion D: H(p) − H(D) while D is below the rarer share.
    inner = right > share.max() / share.sum() + 1e-3
    wrong = np.stack([right, 1 - right])[:, inner]
    np.testing.assert_allclose(
        bits[inner], entropy(share, base=2) - entropy(wrong, base=2), atol=1e-6
    )


def test_no_training_is_beyond_the_frontier_and_an_impossible_one_would_be_noticed(results):
    assert (_beyond(results) < 1e-6).all()
    cheat = json.loads(json.dumps(results))
    cheat["prices, 4 experts"]["cells"][0]["sampled"][0] = 0.9
    assert _beyond(cheat).max() > 0.2
    assert [m.passed for m in measures(cheat) if m.name.endswith("at the most")] == [False]


def test_the_figure_is_drawn_from_stored_data(results, tmp_path):
    draw(results).savefig(tmp_path / "figure.png")
    only_one = {name: piece for name, piece in results.items() if piece["n_experts"] == 1}
    draw(only_one).savefig(tmp_path / "figure.png")


def test_the_explorer_holds_every_cell(results):
    html = explore(results)
    text = html.split('id="explorer-data">')[1].split("</script>")[0]
    data = json.loads(text)
    assert data["experts"] == [1, 4]
    (dear,), (cheap,) = data["modes"]["prices"]["experts"]["4"]["cells"]
    assert dear["accuracy"] < cheap["accuracy"]
    assert sum(cheap["share"]) == pytest.approx(1.0, abs=0.01)
    assert "http" not in html.replace("http://www.w3.org", "")


def test_packed_probabilities_come_back_to_half_a_step(rng):
    values = rng.uniform(size=(5, 7))
    np.testing.assert_allclose(unpack(pack(values), 5, 7), values, atol=0.5 / 255 + 1e-9)


def test_the_decision_boundary_is_where_both_classes_are_equally_probable():
    axis = np.linspace(-2, 2, 81)
    radius = np.hypot(*np.meshgrid(axis, axis))
    x, y = _boundary([axis, axis], 1 / (1 + np.exp(4 * (radius - 1))))
    assert (x[-1], y[-1]) == (None, None)
    np.testing.assert_allclose(np.hypot(x[:-1], y[:-1]), 1.0, atol=0.01)


@pytest.mark.slow
@pytest.mark.optimised
def test_every_kind_of_resource_is_drawn_and_budgets_are_met(tmp_path):
    settings = budgets.Settings.quick(seeds=1, n_budgets=5, n_prices=2, steps=3000, method="both")
    results = {
        name: json.loads(encode(compute())) for name, compute in budgets.pieces(settings).items()
    }
    budgets.draw(results).savefig(tmp_path / "figure.png")
    met = {m.name: m for m in budgets.measures(results)}
    assert met["distance from budgets up to 0.9 bit, bits"].passed
    assert met["accuracy, budget of 2 bit"].passed
    # The paper's method has prices, schedules and the penalty, but no budgets.
    literal = [name for name in met if name.endswith("the paper's method")]
    assert len(literal) == 3
    assert not any("budget" in name for name in literal)
