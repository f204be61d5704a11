"""Meta-learners that begin with few experts, which are split while they learn."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory import MetaSpecialistRegressor
from pinfactory.core import compiling
from pinfactory.core.hierarchy import pick, stack
from pinfactory.core.splitting import Growth
from pinfactory.core.training import Callback, Run
from pinfactory.meta import growth
from pinfactory.meta.experts import TaskInput
from pinfactory.meta.growth import TaskGrowth
from pinfactory.meta.loss import task_utilities
from pinfactory.meta.source import ScaledTasks, TaskSource
from pinfactory.meta.tasks import Sinusoids, draw_recipes

SMALL = {
    "n_experts": 5,
    "n_initial_experts": 2,
    "growth_fraction": 0.25,
    "expert_hidden": (4,),
    "selector_hidden": (8,),
    "adaptation": "none",
    "max_iter": 1000,
    "batch_size": 4,
    "random_state": 0,
}
TASKS = Sinusoids(shots=5)
ANSWER = eqx.filter_jit(lambda model, inputs: jax.vmap(model)(inputs))


class Counts(Callback):
    """Writes down how many experts there are, and fails after some chunks if asked to."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.counts: list[int] = []
        self.fails_after = fails_after

    def chunk(self, progress, run) -> None:
        self.counts.append(int(run.state.model.available.sum()))
        if len(self.counts) == self.fails_after:
            raise RuntimeError("as if the process had died")


def test_experts_double_and_end_with_all_there_may_be(tmp_path):
    unbroken, counts = MetaSpecialistRegressor(**SMALL), Counts()
    unbroken.fit(TASKS, callbacks=counts)
    assert counts.counts == [2, 4, 5, 5]
    # Chunks have 250 steps: the run ends just where experts are split for the second time.
    path, resumed, rest = tmp_path / "run", MetaSpecialistRegressor(**SMALL), Counts()
    with pytest.raises(RuntimeError, match="died"):
        resumed.fit(TASKS, callbacks=Counts(fails_after=3), checkpoint=path)
    resumed.fit(TASKS, callbacks=rest, checkpoint=path)
    assert rest.counts == [5, 5]
    states = (jax.tree.leaves(learner.state_.model) for learner in (unbroken, resumed))
    for one, other in zip(*states, strict=True):
        if hasattr(one, "shape"):
            np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def one_expert() -> MetaSpecialistRegressor:
    """A learner whose only expert in use may be split."""
    settings = SMALL | {"n_experts": 2, "n_initial_experts": 1, "max_iter": 250}
    settings["growth_fraction"] = 0.9
    return MetaSpecialistRegressor(**settings).fit(TASKS)


def split(learner: MetaSpecialistRegressor):
    """Return the learner's state after all experts were split, and tasks in its units."""
    tasks = ScaledTasks(TASKS, learner.scale_)
    run = Run.start(jax.random.key(0)[None], stack([learner.state_]))
    grown = TaskGrowth(Growth.plan(1, 2, 0.0), 250, learner._utility(), tasks)(run)
    recipes = draw_recipes(tasks, np.random.default_rng(1), 500)
    return pick(grown.state, 0), jax.jit(jax.vmap(TaskSource(tasks).tasks.build))(recipes)


def forget():
    for function in compiling._bounded:
        function.clear_cache()


@pytest.fixture
def plain_copies(monkeypatch):
    """Let a child be its parent; programs hold these numbers, so that they are dropped."""
    monkeypatch.setattr(growth, "SHARPNESS", 0.0)
    monkeypatch.setattr("pinfactory.core.splitting.NOISE", 0.0)
    forget()
    yield
    forget()


def test_copies_answer_as_the_one_did(one_expert, plain_copies):
    state, batch = split(one_expert)
    inputs = TaskInput(batch.support, batch.query.x)
    after = ANSWER(state.model, inputs)
    before = ANSWER(one_expert.state_.model, inputs)
    np.testing.assert_allclose(after.selections[0].probs, 0.5, atol=1e-6)
    for expert in (0, 1):
        np.testing.assert_array_equal(after.answers.mean[:, expert], before.answers.mean[:, 0])
    np.testing.assert_allclose(state.constraints.priors.stages[0].family.probs, 0.5, atol=1e-6)


def test_a_child_takes_over_the_tasks_that_cost_its_parent_most(one_expert):
    state, batch = split(one_expert)
    utilities = eqx.filter_jit(task_utilities)
    cost = -utilities(one_expert._utility(), one_expert.state_.model, batch)[:, 0]
    inputs = TaskInput(batch.support, batch.query.x)
    child = ANSWER(state.model, inputs).selections[0].probs[:, 1]
    assert jnp.average(cost, weights=child) > 1.2 * jnp.average(cost, weights=1.0 - child)
    assert 0.2 < jnp.mean(child) < 0.8


@pytest.mark.parametrize("other", [{"selector": "kmeans"}, {"warmup_fraction": 0.2}])
def test_what_divides_tasks_among_all_experts_does_not_go_with_growth(other):
    with pytest.raises(ValueError, match="`n_initial_experts` must be None where"):
        MetaSpecialistRegressor(4, n_initial_experts=2, **other).fit(TASKS)
