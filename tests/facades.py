"""One dictionary of all learners, over which the laws of `test_facades.py` are tested."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pinfactory import (
    MetaSpecialistAgent,
    MetaSpecialistClassifier,
    MetaSpecialistRegressor,
    SpecialistAgent,
    SpecialistClassifier,
    SpecialistMixture,
    SpecialistRegressor,
    paper,
)
from pinfactory.core.information import Information
from pinfactory.meta.tasks import ArrayTasks, Sinusoids
from pinfactory.rl.envs import Pendulum
from point_task import point_tasks

N_EXPERTS = 2
X = np.random.default_rng(0).normal(size=(64, 2))
LABELS = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
STATES = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
SETS = np.random.default_rng(2).normal(size=(120, 3)).astype(np.float32)
TASKS = ArrayTasks(SETS, np.arange(120) // 20, ways=2, shots=3, queries=3)
POINTS = point_tasks().draw(np.random.default_rng(3), 5)
LINE = np.linspace(-3.0, 3.0, 8)[:, None]


class Facade(NamedTuple):
    """How a learner is made, trained for a moment, and asked."""

    make: Callable[..., Any]
    fit: Callable[..., Any]
    answer: Callable[[Any], np.ndarray]
    responsibilities: Callable[[Any], np.ndarray]
    seed: str = "random_state"
    is_storable: bool = True


def assert_possible(learner: Any, facade: Facade) -> None:
    """Check that every KL ≥ 0, 0 ≤ I(·;M) ≤ log₂ M, and responsibilities sum to one."""
    told, n_experts = learner.information_, learner.get_params()["n_experts"]
    assert isinstance(told, Information)
    assert 0.0 <= told.selector <= math.log2(n_experts) + 1e-5
    assert 0.0 <= told.experts < math.inf
    assert np.all(np.asarray(told.per_expert) >= 0.0)
    np.testing.assert_allclose(np.sum(told.responsibility), 1.0, rtol=1e-5)
    np.testing.assert_allclose(
        np.dot(told.responsibility, told.per_expert), told.experts, rtol=1e-3, atol=1e-6
    )
    assert 1.0 <= told.effective_experts <= n_experts * (1 + 1e-5)
    assert learner.effective_experts_ == told.effective_experts
    assert "selector" in repr(told)
    assert np.isfinite(facade.answer(learner)).all()
    shares = np.atleast_2d(facade.responsibilities(learner))
    assert shares.shape[-1] == n_experts
    assert (shares >= 0.0).all()
    np.testing.assert_allclose(shares.sum(axis=-1), 1.0, rtol=1e-5)


def _make(cls: type, *arguments: Any, **small: Any) -> Callable[..., Any]:
    def make(**settings: Any) -> Any:
        return cls(*arguments, **({"n_experts": N_EXPERTS} | small | settings))

    return make


def _agent_settings() -> dict[str, Any]:
    return {"n_envs": 4, "n_steps": 8, "batch_size": 16, "n_epochs": 1, "max_episode_steps": 16}


FACADES = {
    "SpecialistClassifier": Facade(
        _make(SpecialistClassifier, max_iter=200, n_init=2, random_state=0),
        lambda learner, **training: learner.fit(X, LABELS, **training),
        lambda learner: learner.predict_proba(X),
        lambda learner: learner.responsibilities(X),
    ),
    "SpecialistRegressor": Facade(
        _make(SpecialistRegressor, max_iter=200, n_init=2, random_state=0),
        lambda learner, **training: learner.fit(X, X[:, 0] * X[:, 1], **training),
        lambda learner: learner.predict(X),
        lambda learner: learner.responsibilities(X),
    ),
    "SpecialistMixture": Facade(
        _make(SpecialistMixture, random_state=0),
        lambda learner, **training: learner.fit(X, **training),
        lambda learner: learner.score_samples(X),
        lambda learner: learner.responsibilities(X),
    ),
    "MetaSpecialistRegressor": Facade(
        _make(MetaSpecialistRegressor, max_iter=20, batch_size=4, random_state=0),
        lambda learner, **training: learner.fit(Sinusoids(shots=4), **training),
        lambda learner: learner.adapt(LINE[:4], np.sin(LINE[:4, 0])).predict(LINE),
        lambda learner: learner.responsibilities(LINE[:4], np.sin(LINE[:4, 0])),
    ),
    "GradientMixture": Facade(
        _make(paper.GradientMixture, max_iter=20, random_state=0),
        lambda learner, **training: learner.fit(X, **training),
        lambda learner: learner.score_samples(X),
        lambda learner: learner.responsibilities(X),
    ),
    "TaskRegressor": Facade(
        _make(paper.TaskRegressor, max_iter=20, batch_size=4, random_state=0),
        lambda learner, **training: learner.fit(Sinusoids(shots=4), **training),
        lambda learner: learner.adapt(LINE[:4], np.sin(LINE[:4, 0])).predict(LINE),
        lambda learner: learner.responsibilities(LINE[:4], np.sin(LINE[:4, 0])),
    ),
    "MetaSpecialistClassifier": Facade(
        _make(MetaSpecialistClassifier, max_iter=20, batch_size=4, random_state=0),
        lambda learner, **training: learner.fit(TASKS, **training),
        lambda learner: learner.adapt(SETS[:6], np.arange(6) % 2).predict_proba(SETS[:9]),
        lambda learner: learner.responsibilities(SETS[:6], np.arange(6) % 2),
    ),
    "SpecialistAgent": Facade(
        _make(SpecialistAgent, Pendulum(), **_agent_settings()),
        lambda learner, **training: learner.learn(64, **training),
        lambda learner: learner.predict(STATES, deterministic=True)[0],
        lambda learner: learner.responsibilities(STATES),
        seed="seed",
    ),
    "MetaSpecialistAgent": Facade(
        _make(MetaSpecialistAgent, point_tasks(), n_tasks=4, n_steps=8, selector_units=8),
        lambda learner, **training: learner.learn(2, **training),
        lambda learner: learner.responsibilities(POINTS),
        lambda learner: learner.responsibilities(POINTS),
        seed="seed",
        # Its tasks are those of a test, which no file can name.
        is_storable=False,
    ),
}
