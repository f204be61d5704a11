"""Choices in meta-reinforcement learning: probes, cells, rates, families, and what is possible."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_discrete_are

from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.rl.envs import State
from pinfactory.rl.meta import (
    MetaSpecialistAgent,
    ParameterFamily,
    cart_pole_tasks,
    double_pendulum_new_tasks,
    double_pendulum_tasks,
    pendulum_tasks,
)

TITLE = "Choices in meta-reinforcement learning"
ABOUT = """
Agents with two experts (four and more where experts are split) on the paper's double pendulums,
each with one setting changed: the actions of the first two steps, the recurrent cell of the
selector, the learning rates of the paper's appendix, or larger actions of new experts. Numbers are
returns in tasks of T, from which agents learn, and of T′, and the information of the chosen expert
about the sign of the motor. Other families are pendulums and cart-poles, half of them with an
inverted motor, with one and two experts. As an upper limit, a linear-quadratic regulator knows each
body; it has the best of four weights of the control and acts after a probe of 0 to 5 steps.
"""
REQUIRES = ("gymnasium",)

VARIANTS: dict[str, dict[str, Any]] = {
    "default settings": {},
    "probe of noise": {"probe": "noise"},
    "probe of changing experts": {"probe": "prior"},
    "probe of one expert": {"probe": "expert"},
    "GRU": {"selector_cell": "gru"},
    "the paper's learning rates": {
        "learning_rate": 1e-4,
        "selector_learning_rate": 1e-4,
        "critic_learning_rate": 1e-3,
    },
    "4 experts": {"n_experts": 4},
    "4 experts, stronger children": {"n_experts": 4, "child_scale": 1.2},
}
FAMILIES: dict[str, tuple[Callable[[], ParameterFamily], dict[str, Any]]] = {
    "pendulums": (pendulum_tasks, {"gamma": 0.95, "probe_size": 0.5}),
    "cart-poles": (cart_pole_tasks, {}),
}
_PRICES = (1.0, 3.0, 10.0, 30.0)


@dataclass(frozen=True)
class Settings(Presets):
    """Which choices, how long agents learn, and in how many new tasks they are judged."""

    seeds: int = 3
    variants: tuple[str, ...] = tuple(VARIANTS)
    families: tuple[str, ...] = tuple(FAMILIES)
    probe_steps: tuple[int, ...] = (0, 1, 2, 3, 5)
    iterations: int = 200
    n_tasks: int = 64
    max_steps: int = 1000
    n_judged: int = 2048

    QUICK: ClassVar[Mapping[str, Any]] = {
        "variants": ("default settings", "probe of one expert"),
        "families": (),
        "probe_steps": (0, 2),
        "iterations": 40,
        "n_tasks": 32,
        "max_steps": 500,
        "n_judged": 512,
    }


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every choice; its seeds share a compiled program."""
    own = without(settings, "variants", "families", "probe_steps")
    variants = {name: partial(_variant, own, name) for name in settings.variants}
    families = {name: partial(_family, own, name) for name in settings.families}
    regulated = {
        f"regulator after a probe of {n} steps": partial(_regulator, own, n)
        for n in settings.probe_steps
    }
    return {**variants, **families, **regulated}


def _train(settings: Settings, family: ParameterFamily, seed: int, **changes: Any) -> Any:
    chosen = {"n_experts": 2, "n_tasks": settings.n_tasks, "seed": seed, **changes}
    return MetaSpecialistAgent(family, **chosen).learn(settings.iterations)


def _both(settings: Settings) -> dict[str, ParameterFamily]:
    ways = {"T": double_pendulum_tasks, "T′": double_pendulum_new_tasks}
    return {where: make(settings.max_steps) for where, make in ways.items()}


def _variant(settings: Settings, name: str) -> dict[str, list[float]]:
    places = _both(settings)
    found: dict[str, list[float]] = {"return on T": [], "return on T′": [], "I(sign; M)": []}
    for seed in range(settings.seeds):
        agent = _train(settings, places["T"], seed, **VARIANTS[name])
        for where, family in places.items():
            judged = agent.evaluate(family, seed=0, n_tasks=settings.n_judged)
            found[f"return on {where}"].append(judged.deterministic.mean)
        found["I(sign; M)"].append(agent.information_.about["control_sign"])
    return found


def _family(settings: Settings, name: str) -> dict[str, list[float]]:
    make, changes = FAMILIES[name]
    found: dict[str, list[float]] = {}
    for n in (1, 2):
        for seed in range(settings.seeds):
            agent = _train(settings, make(), seed, n_experts=n, capacity=2, **changes)
            judged = agent.evaluate(seed=0, n_tasks=settings.n_judged).deterministic.mean
            found.setdefault(f"return with {n} of 2 experts", []).append(judged)
    return found


def _regulator(settings: Settings, probe_steps: int) -> dict[str, list[float]]:
    """Return the mean return of regulators for the true bodies, by seed of the tasks."""
    found: dict[str, list[float]] = {}
    for where, family in _both(settings).items():
        play = jax.jit(jax.vmap(partial(_episode, family.env, probe_steps)))
        for seed in range(settings.seeds):
            params = family.draw(np.random.default_rng([seed, 1, 0]), 256)
            motion = _linearised(family.env, params)
            returns = [
                float(play(jnp.asarray(_gains(*motion, price), jnp.float32), params).mean())
                for price in _PRICES
            ]
            found.setdefault(f"return on {where}", []).append(max(returns))
    return found


def _linearised(env: Any, params: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B of z′ = A z + B u around upright, for every body."""

    def motion(z: jax.Array, u: jax.Array, body: Any) -> jax.Array:
        now = State(z[:3], z[3:], jnp.zeros((), jnp.int32))
        after, _ = env.step(jax.random.key(0), now, u, body)
        return jnp.concatenate([after.position, after.velocity])

    jacobians = jax.vmap(jax.jacfwd(motion, (0, 1)), (None, None, 0))
    a, b = jax.jit(jacobians)(jnp.zeros(6), jnp.zeros(1), params)
    return np.asarray(a, float), np.asarray(b, float)


def _gains(a: np.ndarray, b: np.ndarray, price: float) -> np.ndarray:
    """Solve the Riccati equation for every body."""
    costs, gains = np.diag([1.0, 1.0, 1.0, 0.1, 0.1, 0.1]), []
    for one, push in zip(a, b, strict=True):
        p = solve_discrete_are(one, push, costs, price * np.eye(1))
        gains.append(np.linalg.solve(push.T @ p @ push + price, push.T @ p @ one))
    return np.array(gains)


def _episode(env: Any, probe_steps: int, gain: jax.Array, body: Any) -> jax.Array:
    def step(carry: Any, t: jax.Array) -> tuple[Any, None]:
        state, alive, total = carry
        u = -gain @ jnp.concatenate([state.position, state.velocity])
        u = jnp.where(t < probe_steps, 0.1 * (1 - 2 * (t % 2)), u)
        state, seen = env.step(jax.random.key(0), state, u, body)
        return (state, alive & ~seen.terminated, total + alive * seen.reward), None

    first: Any = (env.reset(jax.random.key(0), body)[0], True, 0.0)
    return jax.lax.scan(step, first, jnp.arange(env.max_steps))[0][2]


def measures(results: Results) -> list[Measure]:
    """Return all numbers, quantity by quantity."""
    found = [
        Measure.over(f"{quantity}, {name}", values, unit="bit" if "sign" in quantity else "")
        for name, piece in results.items()
        for quantity, values in piece.items()
    ]
    return sorted(found, key=lambda measure: measure.name.partition(", ")[0])
