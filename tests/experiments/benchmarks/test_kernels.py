"""What XLA counts of a program."""

import jax
import jax.numpy as jnp

from pinfactory.experiments.benchmarks._kernels import count_costs


def test_what_is_in_a_loop_counts_as_often_as_it_runs():
    def inner(x):
        return jax.lax.fori_loop(0, 3, lambda _, x: jnp.sin(x), x)

    @jax.jit
    def outer(x):
        return jnp.exp(jax.lax.fori_loop(0, 5, lambda _, x: jnp.cos(inner(x)), x))

    costs = count_costs(jax.make_jaxpr(outer)(jnp.ones(64)))
    assert costs["functions"] == 64 * (5 * (3 + 1) + 1)
