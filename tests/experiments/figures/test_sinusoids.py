import json

import numpy as np
import pytest

from pinfactory.experiments.experiment import Experiment
from pinfactory.experiments.figures import sinusoids as experiment
from pinfactory.experiments.figures._sinusoid_division import fit_to_bits, told_by_choice


@pytest.fixture(scope="module")
def results():
    settings = experiment.Settings.quick(
        seeds=1,
        n_experts=(2,),
        rules=("none",),
        steps=250,
        n_tasks=250,
        shots=(10,),
        rate_bits=(0.5,),
        resolution=8,
        method="both",
    )
    found = {name: piece() for name, piece in experiment.pieces(settings).items()}
    return json.loads(json.dumps(found))


def made_up(errors, shots=10):
    return {
        f"gradient, {n} experts, K = {shots}": {
            "rule": "gradient", "n_experts": n, "shots": shots, "error": [error], "bits": [1.0],
        }
        for n, error in errors.items()
    }  # fmt: skip


def test_is_an_experiment():
    assert isinstance(experiment, Experiment)


def test_the_paper_preset_has_all_numbers_of_experts_and_points():
    names = experiment.pieces(experiment.Settings.paper())
    for rule in experiment.RULES:
        for n in (1, 2, 4, 8, 16):
            for shots in (1, 5, 10):
                assert f"{rule}, {n} experts, K = {shots}" in names
    assert {"MAML, one hidden layer, K = 5", "MAML, two hidden layers, K = 1"} < names.keys()


def test_controls_are_of_the_most_experts_and_stand_beside_them(results):
    rows = {measure.name: measure.ours for measure in experiment.measures(results)}
    piece = results["none, control: k-means selector"]
    assert rows["MSE, no adaptation, K = 10, control: k-means selector"] == piece["error"][0]
    # Clusters are worse than what is learned, and better than one answer to all: E[a²]/2.
    ours = results["none, 2 experts, K = 10"]["error"][0]
    assert ours < piece["error"][0] < (5.0**3 - 0.1**3) / (3 * 4.9) / 2
    titles = [axes.get_title(loc="left") for axes in experiment.draw(results).axes]
    assert titles.count("Controls, no adaptation") == 1
    pieces = experiment.pieces(experiment.Settings.paper())
    for rule in experiment.RULES:
        for name in ("k-means selector", "without prices", "dense network"):
            assert pieces[f"{rule}, control: {name}"].args[1:3] == (rule, 16)


def test_pieces_are_plain_data_with_sound_numbers(results):
    piece = results["none, 2 experts, K = 10"]
    # Two experts do better than one answer to all curves, whose error is E[a²]/2.
    assert 0.0 < piece["error"][0] < 0.9 * (5.0**3 - 0.1**3) / (3 * 4.9) / 2
    assert 0.3 < piece["bits"][0] <= 1.0
    shares = np.asarray(piece["partition"]["responsibilities"])
    assert shares.shape == (64, 2)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=2e-3)
    assert 0.0 <= results["0.5 bits"]["bits"][0] <= 1.0


def test_the_papers_method_stands_beside_ours(results):
    rows = {measure.name: measure for measure in experiment.measures(results)}
    ours = rows["MSE, no adaptation, 2 experts, K = 10"]
    literal = rows["MSE, no adaptation, 2 experts, K = 10, the paper's method"]
    assert ours.paper_method == literal.ours > ours.ours
    assert "MSE, ten steps of Adam, 2 experts, K = 10, the paper's method" in rows


def test_the_figure_shows_errors_rates_partitions_and_curves(results):
    figure = experiment.draw(results)
    titles = {axes.get_title(loc="left") for axes in figure.get_axes()}
    assert {"10 points", "Rate and utility", "2 experts share the curves"} <= titles


def test_every_doubling_is_judged():
    falls = experiment.measures(made_up({1: 2.0, 2: 1.0, 4: 0.9}))
    rises = experiment.measures(made_up({1: 2.0, 2: 1.0, 4: 1.1}))
    judged = [next(m for m in found if "ratio" in m.name) for found in (falls, rises)]
    assert [measure.passed for measure in judged] == [True, False]
    assert judged[0].ours == pytest.approx(0.9)


def test_the_promise_for_sixteen_experts_is_judged():
    found = {m.name: m for m in experiment.measures(made_up({8: 0.6, 16: 0.5}))}
    assert found["MSE, 10 gradient steps, 16 experts, K = 10"].passed
    assert found["MSE, 10 gradient steps, 8 experts, K = 10"].passed is None


def test_what_a_choice_tells_is_that_of_divisions_made_by_hand():
    side = 40
    phase, chance = np.tile(np.arange(side), side), np.random.default_rng(0).uniform(size=side**2)
    for high, bits in (
        (phase >= side // 2, {"amplitude": 0.0, "phase": 1.0, "curve": 1.0}),
        (chance < 0.5, {"amplitude": 0.0, "phase": 0.0, "curve": 0.03}),
    ):
        division = {"phase": np.arange(side), "responsibilities": np.eye(2)[high.astype(int)]}
        assert told_by_choice(division) == pytest.approx(bits, abs=0.02)


def test_a_law_of_the_logarithm_is_told_from_a_straight_line():
    bits = np.array([0.25, 0.5, 1.0, 2.0])
    assert fit_to_bits(bits, 3.0 - np.log2(bits))["the logarithm of bits"] == pytest.approx(1.0)
    assert fit_to_bits(bits, 3.0 - bits)["bits"] == pytest.approx(1.0)
    assert fit_to_bits(bits, 3.0 - bits)["the logarithm of bits"] < 0.95
    budgets = {
        f"{b:g} bits": {"budget": b, "bits": [b, b], "error": [3.0 - b, 2.0 - b]} for b in bits
    }
    found = {measure.name: measure for measure in experiment.measures(budgets)}
    assert found["R² of the error over bits"].ours == pytest.approx(1.0)
    assert found["R² of the error over bits"].n == 2


def test_measures_say_what_the_choice_tells(results):
    rows = {measure.name: measure.ours for measure in experiment.measures(results)}
    told = [rows[f"I({name}; M) in bits, no adaptation, K = 10"] for name in ("curve", "phase")]
    assert told == [results["none, 2 experts, K = 10"][f"I({n}; M)"][0] for n in ("curve", "phase")]
