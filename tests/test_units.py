"""Possible numbers in any units of features and utilities, and from a thousand experts.

Those of committees are in `estimators/test_extremes.py`, those of `SpecialistMixture` in
`estimators/test_mixture_data.py`, all resources in `test_facades.py`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from facades import FACADES, LINE, SETS, X, assert_possible
from pinfactory import MetaSpecialistAgent, SpecialistAgent
from pinfactory.meta.tasks import ArrayTasks, Episode, Samples, Sinusoids
from pinfactory.rl.meta import Either, ParameterFamily
from point_task import Point

OTHERS = [n for n in FACADES if n.startswith(("Meta", "Task", "Gradient")) or n.endswith("Agent")]
SHORT = {"n_experts": 2, "n_steps": 8}
# Every environment of a meta-agent compiles anew.
SLOW = pytest.mark.slow


class ScaledSinusoids(Sinusoids):
    """Curves with inputs and targets in other units, of which programs know nothing."""

    feature: jax.Array = eqx.field(default=1.0, converter=jnp.asarray)
    utility: jax.Array = eqx.field(default=1.0, converter=jnp.asarray)

    def build(self, recipe):
        def scaled(samples):
            return Samples(self.feature * samples.x, self.utility * samples.y)

        return Episode(*map(scaled, super().build(recipe)))


class ScaledPoint(Point):
    """Observations and rewards in other units."""

    feature: float = eqx.field(default=1.0, static=True)
    utility: float = eqx.field(default=1.0, static=True)

    def reset(self, key, params):
        state, x = super().reset(key, params)
        return state, self.feature * x

    def step(self, key, state, action, params):
        state, told = super().step(key, state, action, params)
        observation, reward = self.feature * told.observation, self.utility * told.reward
        return state, told._replace(observation=observation, reward=reward)


def scaled(name, feature, utility, dtype):
    """Return how the learner is trained and asked in these units."""
    facade = FACADES[name]
    if name == "GradientMixture":
        x = (feature * X).astype(dtype)
        return facade._replace(
            fit=lambda learner: learner.fit(x),
            answer=lambda learner: learner.score_samples(x),
            responsibilities=lambda learner: learner.responsibilities(x),
        )
    if name == "MetaSpecialistClassifier":
        x, labels = (feature * SETS).astype(dtype), np.arange(6) % 2
        tasks = ArrayTasks(x, np.arange(120) // 20, ways=2, shots=3, queries=3)
        return facade._replace(
            fit=lambda learner: learner.fit(tasks),
            answer=lambda learner: learner.adapt(x[:6], labels).predict_proba(x[:9]),
            responsibilities=lambda learner: learner.responsibilities(x[:6], labels),
        )
    if name in ("MetaSpecialistRegressor", "TaskRegressor"):
        tasks = ScaledSinusoids(shots=4, feature=feature, utility=utility)
        x, y = (feature * LINE).astype(dtype), (utility * np.sin(LINE[:4, 0])).astype(dtype)
        return facade._replace(
            fit=lambda learner: learner.fit(tasks),
            answer=lambda learner: learner.adapt(x[:4], y).predict(x),
            responsibilities=lambda learner: learner.responsibilities(x[:4], y),
        )
    point = ScaledPoint(feature=feature, utility=utility)
    if name == "SpecialistAgent":
        x = (feature * LINE[:, :1]).astype(dtype)
        settings = {"n_envs": 4, "batch_size": 16, "n_epochs": 1}
        return facade._replace(
            make=lambda: SpecialistAgent(point, **SHORT | settings),
            answer=lambda learner: learner.predict(x, deterministic=True)[0],
            responsibilities=lambda learner: learner.responsibilities(x),
        )
    family = ParameterFamily(point, {"sign": Either(1.0, -1.0)})
    tasks = family.draw(np.random.default_rng(3), 5)
    settings = {"n_tasks": 4, "selector_units": 8}
    return facade._replace(
        make=lambda: MetaSpecialistAgent(family, **SHORT | settings),
        answer=lambda learner: learner.adapt(point).responsibilities_,
        responsibilities=lambda learner: learner.responsibilities(tasks),
    )


@pytest.mark.parametrize(
    ("feature", "utility", "dtype"),
    [(1e-8, 1e-6, np.float32), (1e8, 1e6, np.float64)],
)
@pytest.mark.parametrize("name", [*OTHERS[:-1], pytest.param(OTHERS[-1], marks=SLOW)])
def test_possible_numbers_in_any_units(name, feature, utility, dtype):
    facade = scaled(name, feature, utility, dtype)
    if name == "TaskRegressor" and feature > 1.0:  # which, as in the paper, standardises nothing
        with pytest.raises(FloatingPointError, match="stopped being finite at step 1"):
            facade.fit(facade.make())
    else:
        assert_possible(facade.fit(facade.make()), facade)


# A mixture by gradient with so many experts once waited for ever in XLA on a busy machine.
MANY = [name for name in OTHERS if name != "GradientMixture"]
SMALL = {
    "SpecialistAgent": {"expert_hidden": (4,)},
    "MetaSpecialistAgent": {"expert_hidden": (4,)},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`beta_selector`=")
@pytest.mark.parametrize("beta", [1e-6, 1e6])
@pytest.mark.parametrize("name", MANY, scope="module")
def test_possible_numbers_from_a_thousand_experts(name, beta):
    small = SMALL.get(name, {"max_iter": 2, "expert_hidden": (4,)})
    many = {"n_experts": 1000, "beta_selector": beta, "beta_expert": beta}
    learner = FACADES[name].fit(FACADES[name].make(**many | small))
    assert_possible(learner, FACADES[name])
