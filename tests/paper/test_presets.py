"""Every number of the paper's appendix, as the presets have it."""

import pytest

from pinfactory import paper
from pinfactory.rl.meta import double_pendulum_tasks

SILENT = {"momentum_selector": 0.99, "momentum_expert": 0.99}
# "Adam with a learning rate of 3e-4 with Mini-Batch sizes of 32 […] for 10000 episodes"
ADAM = {"learning_rate": 3e-4, "batch_size": 32}
SUPERVISED = ADAM | {"selector_hidden": (10, 10), "max_iter": 10_000} | SILENT
# "a meta-batch size of 16 […] 10 gradient updates […] Adam with a learning rate of 3e-4"
TASKS = {
    "learning_rate": 3e-4,
    "inner_rate": 3e-4,
    "inner_steps": 10,
    "batch_size": 16,
    "max_iter": 10_000,
} | SILENT
NOTHING_OF_OURS = {
    "start": "random",
    "n_init": 1,
    "early_stopping": False,
    "averaging": False,
    "standardise": False,
    "weight_decay": 0.0,
    "expectation": "sampled",
    "objective": "free_energy",
    "top_k": None,
}


@pytest.mark.parametrize(
    ("learner", "settings"),
    [
        (paper.classifier(), SUPERVISED | NOTHING_OF_OURS | {"expert": "linear"}),
        (
            paper.regressor(),
            SUPERVISED | NOTHING_OF_OURS | {"expert": "linear", "utility": "squared_error"},
        ),
        (
            paper.mixture(),
            SUPERVISED | {"beta_selector": 20.0, "beta_expert": 1.0, "expectation": "sampled"},
        ),
        (
            paper.sinusoids(),
            TASKS
            | {"selector_hidden": (16, 16), "utility": "huber"}
            | {"beta_selector": 25.0, "beta_expert": 1.25},
        ),
        *(
            (
                paper.few_shot(n),
                TASKS
                | {"selector_hidden": (32,) * layers, "filters": 32}
                | {"beta_selector": beta_selector, "beta_expert": beta_expert},
            )
            for n, layers, beta_selector, beta_expert in (
                (2, 2, 20.0, 2.5),
                (4, 2, 20.0, 2.5),
                (8, 3, 50.0, 1.25),
                (16, 3, 50.0, 1.25),
            )
        ),
        (
            paper.agent("CartPole-v1"),
            ADAM
            | SILENT
            | {"n_experts": 5, "expert": "linear", "beta_selector": 25.0, "beta_expert": 2.5}
            | {"selector_hidden": (32, 32), "expert_hidden": (32, 32), "critic_hidden": (32, 32)}
            | {"n_steps": 1024, "n_envs": 1, "final_learning_rate": 3e-4}
            | {"update": "plain", "expectation": "sampled", "units": "reward"}
            | {"normalise": False, "squash": False, "max_grad_norm": None},
        ),
        (
            paper.meta_agent(double_pendulum_tasks(), 4),
            SILENT
            | {"selector_units": 200, "selector_cell": "indrnn"}
            | {"expert_hidden": (64, 64), "critic_hidden": (64, 64)}
            | {"learning_rate": 1e-4, "selector_learning_rate": 1e-4}
            | {"critic_learning_rate": 1e-3, "beta_selector": 25.0, "beta_expert": 2.5}
            | {"n_tasks": 64, "probe": "expert", "update": "plain", "squash": False}
            | {"balance_coef": 0.0, "n_initial_experts": 4},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_preset_has_the_numbers_of_the_appendix(learner, settings):
    assert {name: getattr(learner, name) for name in settings} == settings


def test_settings_can_be_changed_one_by_one():
    learner = paper.few_shot(16, beta_selector=3.0, max_iter=7)
    assert (learner.beta_selector, learner.max_iter, learner.beta_expert) == (3.0, 7, 1.25)
