import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax

from pinfactory.core.families import Categorical, Gaussian
from pinfactory.core.hierarchy import FamilyExpert, Hierarchy, assemble


def nested(key):
    def pair(k):
        return assemble(
            k,
            lambda k: eqx.nn.Linear(2, 3, key=k),
            lambda k: FamilyExpert(eqx.nn.Linear(2, 4, key=k), Categorical.from_logits),
            3,
        )

    return assemble(key, lambda k: eqx.nn.Linear(2, 2, key=k), pair, 2)


def test_decision_holds_the_selector_and_every_expert(linear_hierarchy, rng):
    hierarchy = linear_hierarchy(jax.random.key(0), 3)
    x = rng.normal(size=2).astype(np.float32)
    decision = eqx.filter_jit(hierarchy)(jnp.asarray(x))
    selector = softmax(np.asarray(hierarchy.selector.weight) @ x + hierarchy.selector.bias)
    np.testing.assert_allclose(decision.responsibilities, selector, rtol=1e-5)
    weights = np.asarray(hierarchy.experts.network.weight)
    biases = np.asarray(hierarchy.experts.network.bias)
    for m in range(3):
        answer = softmax(weights[m] @ x + biases[m])
        np.testing.assert_allclose(decision.answers.probs[m], answer, rtol=1e-5)


def test_nested_decision_multiplies_probabilities_down_the_levels(rng):
    hierarchy = nested(jax.random.key(0))
    x = rng.normal(size=2).astype(np.float32)
    decision = eqx.filter_jit(hierarchy)(jnp.asarray(x))
    outer = softmax(np.asarray(hierarchy.selector.weight) @ x + hierarchy.selector.bias)
    inner = [
        softmax(np.asarray(w) @ x + b)
        for w, b in zip(
            hierarchy.experts.selector.weight, hierarchy.experts.selector.bias, strict=True
        )
    ]
    expected = np.array([[outer[i] * inner[i][j] for j in range(3)] for i in range(2)])
    assert decision.answers.batch_shape == (2, 3)
    np.testing.assert_allclose(decision.responsibilities, expected, rtol=1e-5)
    assert [reach.shape for reach in decision.reach] == [(), (2,), (2, 3)]


def test_experts_start_out_different(linear_hierarchy):
    weights = np.asarray(linear_hierarchy(jax.random.key(0), 4).experts.network.weight)
    assert len(np.unique(weights.reshape(4, -1), axis=0)) == 4


def test_one_expert_can_be_taken_out_by_a_traced_index(linear_hierarchy):
    hierarchy = linear_hierarchy(jax.random.key(0), 3)
    x = jnp.asarray([0.5, -1.0])
    alone = eqx.filter_jit(lambda h, m: h.expert(m)(x))(hierarchy, jnp.asarray(2))
    np.testing.assert_allclose(alone.log_probs, hierarchy(x).answers.log_probs[2], rtol=1e-6)
    assert isinstance(nested(jax.random.key(0)).expert(jnp.asarray(1)), Hierarchy)


def test_selecting_asks_no_expert(linear_hierarchy):
    hierarchy = linear_hierarchy(jax.random.key(0), 3)
    x = jnp.asarray([0.5, -1.0])
    silent = eqx.tree_at(lambda h: h.experts, hierarchy, None)
    np.testing.assert_array_equal(silent.select(x).log_probs, hierarchy(x).selections[0].log_probs)


def test_switched_off_experts_get_no_probability_and_the_rest_share_it(linear_hierarchy):
    hierarchy = linear_hierarchy(jax.random.key(0), 4)
    x = jnp.asarray([0.5, -1.0])
    everyone = np.asarray(hierarchy(x).responsibilities)
    some = eqx.tree_at(lambda h: h.available, hierarchy, jnp.asarray([True, False, True, False]))
    left = np.asarray(some(x).responsibilities)
    assert left[1] == left[3] == 0.0
    np.testing.assert_allclose(left[[0, 2]], everyone[[0, 2]] / everyone[[0, 2]].sum(), rtol=1e-5)


def test_experts_may_answer_with_any_family_and_use_a_key():
    dropout = eqx.nn.Sequential([eqx.nn.Dropout(0.5), eqx.nn.Linear(3, 2, key=jax.random.key(1))])
    hierarchy = assemble(
        jax.random.key(0),
        lambda k: eqx.nn.Linear(3, 2, key=k),
        lambda k: FamilyExpert(dropout, lambda out: Gaussian(out, jnp.zeros(2))),
        2,
    )
    x = jnp.ones(3)
    decide = eqx.filter_jit(lambda key: hierarchy(x, key=key).answers.mean)
    first, again, other = (decide(jax.random.key(seed)) for seed in (0, 0, 3))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_experts_of_the_last_level_are_numbered_through(rng):
    hierarchy = nested(jax.random.key(0))
    x = jnp.asarray(rng.normal(size=(5, 2)).astype(np.float32))
    decision = jax.vmap(hierarchy)(x)
    flat = decision.flat
    assert hierarchy.sizes == (2, 3)
    np.testing.assert_allclose(
        flat.responsibilities, decision.responsibilities.reshape(5, 6), rtol=1e-6
    )
    selected = jax.vmap(hierarchy.select_last)(x)
    np.testing.assert_allclose(selected.probs, flat.responsibilities, rtol=1e-6)
    for m in range(6):
        alone = jax.vmap(hierarchy.last_expert(jnp.asarray(m)))(x)
        np.testing.assert_allclose(alone.log_probs, flat.answers.log_probs[:, m], rtol=1e-5)


def test_an_expert_is_available_if_all_above_it_are():
    hierarchy = nested(jax.random.key(0))
    inner = hierarchy.experts.available.at[0, 2].set(False)
    some = eqx.tree_at(
        lambda h: (h.available, h.experts.available),
        hierarchy,
        (jnp.asarray([True, False]), inner),
    )
    assert some.last_available.tolist() == [True, True, False, False, False, False]
    probs = some.select_last(jnp.ones(2)).probs
    assert (np.asarray(probs) > 0).tolist() == some.last_available.tolist()
