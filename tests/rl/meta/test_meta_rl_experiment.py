"""The experiment: its numbers from made-up results, and small trainings."""

import json
from typing import Any

import numpy as np
import pytest

from pinfactory.experiments.experiment import Experiment
from pinfactory.experiments.figures import meta_rl


def agent(n: int, returns: float, bits: float) -> dict[str, Any]:
    shares = np.eye(n)[[0, n - 1]].tolist()
    partition = {
        name: {"middle": [-1.0, 1.0], "shares": shares}
        for name in ("control_sign", "gravity", "gear")
    }
    return {
        "n_experts": n,
        "steps": 1000,
        "curve": [[500, returns / 2], [1000, returns]],
        "returns": {"T": returns, "T′": returns / 2, "T′ after": 0.75 * returns},
        "selector_bits": bits,
        "expert_bits": 0.5,
        "sign_bits": bits,
        "effective_experts": 2.0**bits,
        "partition": partition,
    }


@pytest.fixture
def results() -> dict[str, Any]:
    returns = {"T before": 500.0, "T after": 3000.0, "T′ before": 100.0, "T′ after": 400.0}
    return {
        "1 experts, seed 0": agent(1, 900.0, 0.0),
        "1 experts, seed 1": agent(1, 1100.0, 0.0),
        "4 experts, seed 0": agent(4, 7000.0, 1.0),
        "4 experts, seed 1": agent(4, 9000.0, 0.9),
        "MAML, seed 0": {"baseline": "MAML", "steps": 1000, "returns": returns},
    }


def test_measures_say_how_far_apart_error_bars_are(results: dict[str, Any]) -> None:
    found = {measure.name: measure for measure in meta_rl.measures(results)}
    assert found["return on T, 4 experts"].ours == 8000.0
    assert found["return on T, 4 experts"].spread == pytest.approx(np.sqrt(2.0) * 1000.0)
    gap = found["gap between error bars of 4 experts and of 1, T"]
    assert gap.ours == pytest.approx(7000.0 - np.sqrt(2.0) * 1100.0)
    assert gap.passed
    assert found["I(sign; M) in bits, 4 experts"].ours == pytest.approx(0.95)
    assert found["4 experts less the best baseline before adaptation, T"].ours == 7500.0
    assert found["4 experts less the best baseline after adaptation, T′"].ours == 5600.0


def test_the_figure_shows_all_parts(results: dict[str, Any]) -> None:
    assert isinstance(meta_rl, Experiment)
    figure = meta_rl.draw(results)
    assert len(figure.get_axes()) == 6
    figure.canvas.draw()


def test_controls_stand_beside_the_experts_they_control(results: dict[str, Any]) -> None:
    for seed, level in enumerate((3000.0, 5000.0)):
        results[f"control: dense network, seed {seed}"] = {
            "control": "dense network",
            "n_experts": 4,
            "n_parameters": 9000,
            "returns": {"T": level, "T′": level / 2, "T′ after": level},
        }
    found = {measure.name: measure for measure in meta_rl.measures(results)}
    assert found["return on T, control: dense network"].ours == 4000.0
    assert found["return on T, 4 experts"].ours == 8000.0
    assert found["parameters, control: dense network"].ours == 9000.0
    axes = meta_rl.draw(results).get_axes()
    assert len(axes) == 9
    labels = [text.get_text() for text in axes[-1].get_yticklabels()]
    assert labels == ["ours, 4 experts", "dense network"]
    pieces = meta_rl.pieces(meta_rl.Settings.paper(seeds=1))
    for name in ("without prices", "dense network"):
        assert pieces[f"control: {name}, seed 0"].args[1] == 8


@pytest.mark.slow
def test_a_small_training_gives_plain_data() -> None:
    settings = meta_rl.Settings.quick(
        n_experts=(1, 2), iterations=5, updates=5, n_tasks=8, n_steps=16, n_judged=8, max_steps=20,
        model_iterations=1, baselines=("MAML", "GrBAL"), controls=("dense network",),
    )  # fmt: skip
    results = {name: piece() for name, piece in meta_rl.pieces(settings).items()}
    assert list(results) == [
        "1 experts, seed 0", "2 experts, seed 0", "MAML, seed 0", "GrBAL, seed 0",
        "control: dense network, seed 0",
    ]  # fmt: skip
    again = json.loads(json.dumps(results))
    assert all(np.isfinite(measure.ours) for measure in meta_rl.measures(again))
    meta_rl.draw(again)
