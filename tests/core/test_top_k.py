"""Hierarchies that ask the most probable experts only."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import rel_entr, softmax

from pinfactory import networks
from pinfactory.core.constraints import Constraints, Fixed, Priors
from pinfactory.core.families import Categorical
from pinfactory.core.gaussian_experts import gaussian
from pinfactory.core.hierarchy import Decision, FamilyExpert, assemble
from pinfactory.core.information import Meter, estimate_information
from pinfactory.core.learning import CommitteeLoss, Data, Learner
from pinfactory.core.objective import objective
from pinfactory.core.utilities import log_likelihood

HEADS = {"classes": Categorical.from_logits, "numbers": gaussian}
decide = eqx.filter_jit(lambda hierarchy, x: jax.vmap(hierarchy)(x))
decide_one = eqx.filter_jit(lambda hierarchy, x: hierarchy(x))


def build(head, n_experts=6, n_available=6, top_k=None):
    hierarchy = assemble(
        jax.random.key(0),
        lambda key: networks.linear(3, n_experts, key=key),
        lambda key: FamilyExpert(networks.linear(3, 4, key=key), HEADS[head]),
        n_experts,
    )
    available = jnp.arange(n_experts) < n_available
    return replace(hierarchy, available=available, top_k=top_k)


def rows(head, n=20):
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(n, 3)), jnp.float32)
    y = random.integers(4, size=n) if head == "classes" else random.normal(size=(n, 2))
    weight = jnp.asarray(random.uniform(0.5, 2.0, size=n), jnp.float32)
    return Data(x, jnp.asarray(y if head == "classes" else y.astype(np.float32)), weight)


def priors_of_experts(state):
    return state.constraints.priors.stages[-1].family


def assert_close(one, other):
    for a, b in zip(
        *(jax.tree.leaves(eqx.filter(t, eqx.is_array)) for t in (one, other)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("head", HEADS)
def test_experts_that_cannot_be_chosen_need_not_be_asked(head):
    """With three available, the three most probable are all there are."""
    data, ends = rows(head), []
    learner = Learner(CommitteeLoss(log_likelihood, mixture=True))
    step = eqx.filter_jit(learner.step)

    @eqx.filter_jit
    def measure(state):
        decision = jax.vmap(state.model)(data.x)
        return Meter.start(decision).update(decision, data.weight).report()

    for top_k in (None, 3):
        hierarchy = build(head, n_available=3, top_k=top_k)
        priors = Priors.running(decide_one(hierarchy, data.x[0]), 0.9, 0.9)
        state = learner.init(hierarchy, Constraints(priors, (Fixed(2.0), Fixed(3.0))))
        for n in range(3):
            state, info = step(jax.random.key(n), state, data)
        measured = measure(state)
        # What nobody has seen of the others does not matter.
        known = jax.tree.map(lambda leaf: leaf[..., :3, :], priors_of_experts(state))
        bits = (*measured.selectors, measured.experts, measured.responsibility)
        ends.append((state.model, known, info, bits))
    assert decide(build(head, top_k=3), data.x).answers.batch_shape == (20, 3)
    assert_close(*ends)


def test_the_objective_is_expected_over_the_asked_and_the_selector_pays_for_all():
    data = rows("classes")
    everyone, few = (decide(build("classes", top_k=k), data.x) for k in (None, 2))
    priors = Priors.uniform(decide_one(build("classes"), data.x[0]))
    answers = np.asarray(everyone.answers.probs, float)
    utility = np.take_along_axis(answers, np.asarray(data.y)[:, None, None], axis=2)[..., 0]
    p = np.asarray(everyone.selections[0].probs, float)
    asked = p >= np.sort(p, axis=1)[:, -2:-1]
    q = asked * p / (asked * p).sum(axis=1, keepdims=True)
    selector = rel_entr(p, 1.0 / 6.0).sum(axis=1)
    experts = (q * rel_entr(answers, 0.25).sum(axis=2)).sum(axis=1)
    expected = (q * utility).sum(axis=1)

    given = jnp.take_along_axis(jnp.asarray(utility, jnp.float32), few.chosen, axis=1)
    parts = eqx.filter_jit(objective)(few, priors, given, (2.0, 3.0))
    np.testing.assert_allclose(parts.utility, expected, rtol=1e-4)
    np.testing.assert_allclose(parts.information[0], selector, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(parts.information[1], experts, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        parts.value, expected - selector / 2.0 - experts / 3.0, rtol=1e-4, atol=1e-6
    )


def test_a_running_prior_of_an_expert_is_the_mean_of_its_own_answers():
    data, hierarchy = rows("classes"), build("classes", top_k=2)
    decision = decide(hierarchy, data.x)
    weights = data.weight / data.weight.sum()
    priors = Priors.running(decide_one(hierarchy, data.x[0]), 0.9, 0.9)
    priors = eqx.filter_jit(lambda priors: priors.update(decision, weights))(priors)
    prior = priors.stages[-1]
    q, probs = np.asarray(decision.responsibilities), np.asarray(decision.answers.probs)
    for m in range(6):
        mine = np.asarray(weights)[:, None] * q * (np.asarray(decision.chosen) == m)
        np.testing.assert_allclose(prior.mass[m], mine.sum(), rtol=1e-5)
        if mine.any():
            mean = (mine[..., None] * probs).sum(axis=(0, 1)) / mine.sum()
            np.testing.assert_allclose(prior.family.probs[m], mean, rtol=1e-4)


def test_what_is_asked_has_all_probability():
    x, hierarchy = rows("classes").x, build("classes", top_k=2)
    everyone = jax.vmap(hierarchy.select_last)(x).probs
    asked = np.asarray(jax.vmap(hierarchy.select_asked)(x).probs)
    assert ((asked > 0).sum(axis=1) == 2).all()
    np.testing.assert_allclose(asked.sum(axis=1), 1.0, rtol=1e-5)
    best = np.sort(np.asarray(everyone), axis=1)[:, -2:]
    np.testing.assert_allclose(np.sort(asked, axis=1)[:, -2:], softmax(np.log(best), axis=1), 1e-4)


def test_information_is_that_of_experts_with_the_probability_of_the_asked():
    x, hierarchy = rows("numbers", 40).x, build("numbers", top_k=2)
    few = decide(hierarchy, x)
    selection = jax.vmap(hierarchy.select_asked)(x)
    same = Decision((selection,), decide(replace(hierarchy, top_k=None), x).answers)
    found, expected = (
        estimate_information(jax.random.key(n), decision, 1000)
        for n, decision in enumerate((few, same))
    )
    for one, other in zip(found, expected, strict=True):
        noise = np.hypot(one.standard_error, other.standard_error)
        assert abs(one.value - other.value) < 5 * noise
