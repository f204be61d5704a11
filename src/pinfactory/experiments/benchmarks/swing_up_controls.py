"""Controls of the swing-ups: a search for one linear controller, and learning without a plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.figures import rl_swing_up
from pinfactory.rl import envs

TITLE = "Controls of the swing-ups"
ABOUT = """
Pole on a cart: the best return of one clipped linear controller that a direct search finds
(cross-entropy method, 30 generations of 256). It shows whether learning or the controller is the
limit where one expert fails. Double pendulum: the same agents as in the figure, but all their
episodes start hanging, instead of backward from upright.
"""
REQUIRES = ("gymnasium",)

_GENERATIONS, _TRIED, _KEPT, _WIDTHS = 30, 256, 16, (3.0, 10.0, 30.0)
_POLE, _DOUBLE = "cart-pole", "double pendulum"


@dataclass(frozen=True)
class Settings(Presets):
    """Starts of the search, and agents that learn from hanging."""

    seeds: int = 6
    kinds: tuple[str, ...] = rl_swing_up.TASKS[_DOUBLE].kinds
    total: int = 3_000_000

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 3, "kinds": ()}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for the search, which shares a program, and one for each training."""
    own = without(settings, "kinds")
    trained = {
        f"{kind}, seed {seed}": partial(_hanging, without(own, "seeds"), kind, seed)
        for kind in settings.kinds
        for seed in range(settings.seeds)
    }
    return {"search": partial(_search, own), **trained}


def _search(settings: Settings) -> dict[str, Any]:
    """Return the mean return of 100 new episodes for every start of the search."""
    env = envs.CartPoleSwingUp()
    params = env.default_params()

    def episode(weights: jax.Array, key: jax.Array) -> jax.Array:
        def step(carry: Any, _: None) -> tuple[Any, jax.Array]:
            state, x = carry
            action = jnp.clip(weights[:-1] @ x + weights[-1], -1.0, 1.0)
            state, moved = env.step(key, state, action[None], params)
            return (state, moved.observation), moved.reward

        return jnp.sum(jax.lax.scan(step, env.reset(key, params), None, env.max_steps)[1])

    returns = jax.jit(jax.vmap(jax.vmap(episode, (None, 0)), (0, None)))
    n_weights, found = env.observation_space.shape[0] + 1, []
    for seed in range(settings.seeds):
        random, widest = np.random.default_rng(seed), _WIDTHS[seed % len(_WIDTHS)]
        centre, spread = np.zeros(n_weights), np.full(n_weights, widest)
        for generation in range(_GENERATIONS):
            tried = (centre + spread * random.normal(size=(_TRIED, n_weights))).astype(np.float32)
            score = np.asarray(returns(tried, _keys(1000 * seed + generation, 3))).mean(axis=1)
            best = tried[np.argsort(score)[-_KEPT:]]
            centre = best.mean(axis=0)
            spread = best.std(axis=0) + 0.1 * widest * 0.9**generation
        found.append(float(returns(centre[None].astype(np.float32), _keys(-1, 100)).mean()))
    return {"searched": found}


def _keys(seed: int, n: int) -> jax.Array:
    return jax.random.split(jax.random.key(seed), n)


def _hanging(settings: Settings, kind: str, seed: int) -> dict[str, Any]:
    _, found = rl_swing_up.learn(_DOUBLE, kind, seed, settings.total, 4, ())
    returns = {how: found[f"final_{how}"] for how in ("deterministic", "stochastic")}
    return {"kind": kind, "effective": found["effective_experts"], **returns}


def measures(results: Results) -> list[Measure]:
    """Return the returns of the search and of the agents."""
    searched = results["search"]["searched"]
    rows = [
        Measure.over("return, cart-pole, one linear controller by search", searched),
        Measure("best return, cart-pole, one linear controller by search", max(searched)),
        Measure("return that solves it, cart-pole", rl_swing_up.TASKS[_POLE].solved),
    ]
    agents = [piece for piece in results.values() if "kind" in piece]
    for kind in dict.fromkeys(piece["kind"] for piece in agents):
        mine = [piece for piece in agents if piece["kind"] == kind]
        for key, name in (
            ("deterministic", "return from hanging alone, deterministic"),
            ("stochastic", "return from hanging alone, stochastic"),
            ("effective", "effective experts, from hanging alone"),
        ):
            rows.append(Measure.over(f"{name}, {kind}", [piece[key] for piece in mine]))
    return rows
