"""Settings that make no sense are refused by name, before anything is learned."""

import math

import numpy as np
import pytest

from pinfactory.baselines import PreTraining
from pinfactory.baselines.rl_gradient import ProMP
from pinfactory.baselines.rl_model import GrBAL
from pinfactory.meta.tasks import ArrayTasks
from point_task import point_tasks

NO_INTEGERS = (0, -1, 0.5, "", (), None, math.nan)
NO_NUMBERS = (-1, "", (), None, math.nan)
SMALL = {"n_tasks": 2, "n_steps": 16, "hidden": (4,)}
WRONG = {
    "family": (0, "", None),
    "hidden": ("", None, (0,), math.nan),
    "seed": (-1, "", None, math.nan),
    "learning_rate": (0, *NO_NUMBERS),
    **dict.fromkeys(("n_tasks", "n_steps"), NO_INTEGERS),
}
WRONG_MODEL = dict.fromkeys(("window", "horizon", "plans", "gradient_steps"), NO_INTEGERS)
WRONG_MODEL |= dict.fromkeys(("inner_rate", "temperature"), (0, *NO_NUMBERS))
WRONG_GRADIENT = {"outer_steps": NO_INTEGERS} | dict.fromkeys(
    ("inner_rate", "gamma", "gae_lambda", "clip_range", "kl_coef"), NO_NUMBERS
)


@pytest.mark.parametrize(
    ("method", "wrong"), [(GrBAL, WRONG | WRONG_MODEL), (ProMP, WRONG | WRONG_GRADIENT)]
)
def test_agents_that_are_compared_with(method, wrong) -> None:
    small = method(point_tasks(), **SMALL)
    before = small.get_params()
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=f"`{name}` must be"):
                small.set_params(**{name: value})
            assert small.get_params() == before


def test_episodes_are_long_enough_for_two_windows() -> None:
    with pytest.raises(ValueError, match="`n_steps` must be at least twice `window`, 8, but got 9"):
        GrBAL(point_tasks(), n_steps=9)


def test_what_they_are_evaluated_in() -> None:
    learner = ProMP(point_tasks(), **SMALL)
    for name, value in (("n_tasks", 0), ("steps", -1), ("seed", -1)):
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            learner.evaluate(**{name: value})


@pytest.mark.parametrize("rates", [0, "", (), None, (0.1, 0.0), ("a",)])
def test_step_sizes_that_pre_training_chooses_from(rates) -> None:
    x = np.random.default_rng(0).uniform(size=(60, 28, 28))

    class Labelled(ArrayTasks):
        def labelled(self, split):
            return np.zeros((4, 28, 28), np.uint8), np.arange(4, dtype=np.int32)

    tasks = Labelled(x, np.repeat(np.arange(12), 5), ways=2, shots=2, queries=2, validation=0.2)
    with pytest.raises(ValueError, match="`inner_rates` must be"):
        PreTraining().set_params(inner_rates=rates).fit(tasks)
