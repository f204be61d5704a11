"""A model that adapts online, on a task whose best return is known."""

import pytest

from pinfactory.baselines.rl_model import GrBAL
from pinfactory.rl.meta import cart_pole_tasks
from point_task import best_return, point_tasks


@pytest.mark.slow
@pytest.mark.optimised
def test_planning_with_an_adapted_model_comes_close_to_the_best_controller() -> None:
    learner = GrBAL(
        point_tasks(),
        n_tasks=16,
        n_steps=40,
        window=4,
        horizon=6,
        plans=32,
        hidden=(32, 32),
        gradient_steps=100,
    )
    learner.learn(32)
    adapted = learner.evaluate(n_tasks=128).mean
    fixed = learner.evaluate(n_tasks=128, adapting=False).mean
    # It finds out the sign by its own actions, so it may lose a step or two.
    assert adapted > best_return(shakes=2) - 0.5
    assert fixed < -20 / 3
    assert learner.num_timesteps == 32 * 16 * 40


def test_plans_need_actions_in_a_box() -> None:
    with pytest.raises(ValueError, match=r"must be in a box .*, but got Discrete\(n=2\)"):
        GrBAL(cart_pole_tasks())
