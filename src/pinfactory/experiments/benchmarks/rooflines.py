"""Floating-point operations and bytes of the inner loops beside what one core can do."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from pinfactory import networks
from pinfactory.core.compiling import compiled, library_settings
from pinfactory.core.families import Categorical
from pinfactory.core.gaussian_experts import gaussian
from pinfactory.core.hierarchy import FamilyExpert, Hierarchy, assemble
from pinfactory.core.utilities import log_likelihood
from pinfactory.estimators.classifier import log_likelihood_of_code
from pinfactory.experiments.experiment import Measure, Presets, Results
from pinfactory.experiments.style import GREY, PALETTE, headline, new_figure, tidy
from pinfactory.rl import envs
from pinfactory.vision import OneBlock

from ._kernels import KINDS, count_costs, count_once, shares, trace_kernels
from ._steps import Steps

TITLE = "Inner loops compared with the limits of one core"
ABOUT = """
Operations, transcendental functions and bytes of one step are XLA's own counts for the compiled
step; loops inside count as often as they run. Time is processor time of a step in the library's
loop, on one core. The limits of the core are measured in the same run: a product of 1,024 × 1,024
matrices in single precision; exponentials, logarithms and sines of an array in the cache; and sums
of two arrays in the cache (16 kB each) and in memory (64 MB each). The least time of a step is the
time of its operations and functions one after the other, or the time of its bytes, whichever is
longer. Bytes of steps that touch less than 1 MB count at the rate of the cache. XLA's trace shows
how many kernels a step calls, and the share of their time in products of matrices and convolutions,
and in copies.
"""
ALONE = True

CORE, CACHE_BYTES = "core", 1e6
SMALL, MEDIUM, LARGE = (
    "paper's committee",
    "16 perceptrons on 16,000 × 26",
    "8 lines on 1,000,000 × 20",
)
PENDULUM, IMAGES = "64 double pendulums", "16 convolutional experts"


@dataclass(frozen=True)
class Settings(Presets):
    """Seconds of a turn, about; seeds are turns."""

    seeds: int = 7
    seconds: float = 0.5

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 5, "seconds": 0.2}


@dataclass(frozen=True)
class Loop:
    """A step as a program whose costs XLA counts, and a loop of steps that takes time.

    It takes an epoch at least, because rows are put into a new order once in each.
    """

    program: Callable[..., Any]
    arguments: tuple[Any, ...]
    run: Callable[[int], Any]
    fewest: int = 100

    def costs(self) -> dict[str, float]:
        """Return operations, transcendental functions and bytes of one step.

        Also the bytes that it touches, however often.
        """
        program = jax.make_jaxpr(self.program)(*self.arguments)
        return count_costs(program) | {"touched": count_once(program)["bytes"]}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for the core and one for every loop."""
    return {CORE: partial(_core, settings)} | {
        name: partial(_measure, settings, name) for name in LOOPS
    }


# --------------------------------------------------------------------------- what the core can do


def _core(settings: Settings) -> dict[str, list[float]]:
    """Return operations and functions per second, and bytes in the cache and in memory."""
    random = np.random.default_rng(0)
    a, b = (jnp.asarray(random.normal(size=(1024, 1024)), jnp.float32) for _ in range(2))
    product = jax.jit(jnp.matmul)
    found: dict[str, list[float]] = {
        "flops": _rates(settings, lambda: product(a, b).block_until_ready(), 2.0 * 1024**3)
    }
    some = jnp.asarray(random.uniform(0.5, 2.0, 4096), jnp.float32)

    def functions(_: Any, x: jax.Array) -> jax.Array:
        return 0.5 + 0.1 * (jnp.exp(x) + jnp.log(x) + jnp.sin(x))

    repeated = jax.jit(partial(jax.lax.fori_loop, 0, 64, functions))
    found["functions"] = _rates(
        settings, lambda: repeated(some).block_until_ready(), 64 * 3.0 * len(some)
    )
    for name, n_bytes in (("cache", 16_384), ("memory", 2**26)):
        one, other = (np.ones(n_bytes // 4, np.float32) for _ in range(2))
        total = np.empty_like(one)
        found[name] = _rates(settings, partial(np.add, one, other, out=total), 3.0 * n_bytes)
    return found


def _rates(settings: Settings, call: Callable[[], Any], amount: float) -> list[float]:
    """Return the amount per second in every turn."""
    call()
    began, calls = time.process_time(), 0
    while time.process_time() - began < 0.1 * settings.seconds:
        call()
        calls += 1
    calls *= 10
    rates = []
    for _ in range(settings.seeds):
        began = time.process_time()
        for _ in range(calls):
            call()
        rates.append(amount * calls / (time.process_time() - began))
    return rates


# ------------------------------------------------------------------------------------- the loops


def _measure(settings: Settings, name: str) -> dict[str, Any]:
    with library_settings():
        loop = LOOPS[name]()
        loop.run(loop.fewest)
        began = time.process_time()
        loop.run(loop.fewest)
        per_step = (time.process_time() - began) / loop.fewest
        steps = max(loop.fewest, int(settings.seconds / per_step))
        loop.run(steps)  # another number of rows in a chunk compiles anew
        seconds = []
        for _ in range(settings.seeds):
            began = time.process_time()
            loop.run(steps)
            seconds.append((time.process_time() - began) / steps)
        kernels = trace_kernels(partial(loop.run, loop.fewest))
        return (
            loop.costs()
            | shares(kernels)
            | {
                "seconds": seconds,
                "kernels": sum(calls for calls, _ in kernels.values()) / loop.fewest,
            }
        )


def _committee(n_experts: int, n_features: int, n_rows: int, kind: str, batch: int) -> Loop:
    """Return the training loop of a committee; linear experts tell two classes apart."""
    x = np.random.default_rng(0).normal(size=(n_rows, n_features)).astype(np.float32)
    classify = kind == "linear"

    def expert(key: jax.Array) -> FamilyExpert:
        if classify:
            return FamilyExpert(networks.linear(n_features, 2, key=key), Categorical.from_logits)
        return FamilyExpert(networks.residual_mlp(n_features, 2, (64,), key=key), gaussian)

    def selector(key: jax.Array) -> networks.Network:
        return networks.mlp(n_features, n_experts, (10, 10), networks.tanh, key=key)

    hierarchy = assemble(jax.random.key(0), selector, expert, n_experts)
    if classify:
        y = (x[:, 0] * x[:, 1] > 0).astype(np.int32)
        return _training(Steps.of(hierarchy, log_likelihood_of_code, x, y, batch))
    return _training(Steps.of(hierarchy, log_likelihood, x, np.abs(x[:, :1]), batch))


def _training(steps: Steps) -> Loop:
    epoch = len(steps.data.weight) // steps.batch_size
    return Loop(*steps.program(), steps.run, max(100, epoch))


def _images() -> Loop:
    """Return the training loop of convolutional experts on random images."""
    random = np.random.default_rng(0)
    x = random.random((1024, 28, 28), np.float32)
    y = random.integers(0, 2, len(x)).astype(np.int32)

    def expert(key: jax.Array) -> FamilyExpert:
        block = OneBlock.start(x[:64], key=key)
        head = networks.linear(block.size, 2, key=key)
        return FamilyExpert(eqx.nn.Sequential([block, head]), Categorical.from_logits)

    def selector(key: jax.Array) -> networks.Network:
        flat = eqx.nn.Lambda(jnp.ravel)
        return eqx.nn.Sequential([flat, networks.linear(28 * 28, 16, key=key)])

    hierarchy: Hierarchy = assemble(jax.random.key(0), selector, expert, 16)
    return _training(Steps.of(hierarchy, log_likelihood_of_code, x, y, 32))


def _pendulum() -> Loop:
    """Return the rollout of 64 double pendulums under random forces."""
    env, n_envs = envs.DoublePendulum(), 64
    params = envs.replicate(env.default_params(), n_envs)
    states, _ = envs.reset_all(env, jax.random.key(0), params)

    def step(key: jax.Array, states: Any, params: Any) -> tuple[Any, jax.Array]:
        force_key, step_key = jax.random.split(key)
        forces = jax.random.uniform(force_key, (n_envs, 1), minval=-1.0, maxval=1.0)
        states, seen, moved = envs.step_all(env, step_key, states, forces, params)
        return states, jnp.mean(moved.reward) + 0.0 * jnp.sum(seen)

    @compiled
    def rollout(keys: jax.Array, states: Any, params: Any) -> jax.Array:
        return jax.lax.scan(lambda s, key: step(key, s, params), states, keys)[1]

    def run(n_steps: int) -> None:
        keys = jax.random.split(jax.random.key(1), n_steps)
        rollout(keys, states, params).block_until_ready()

    return Loop(step, (jax.random.key(0), states, params), run)


LOOPS: Mapping[str, Callable[[], Loop]] = {
    SMALL: partial(_committee, 4, 2, 1024, "linear", 32),
    MEDIUM: partial(_committee, 16, 26, 16_000, "perceptron", 64),
    LARGE: partial(_committee, 8, 20, 1_000_000, "linear", 1024),
    PENDULUM: _pendulum,
    IMAGES: _images,
}


def _least(piece: Mapping[str, Any], core: Mapping[str, float]) -> float:
    """Return the least seconds of a step."""
    bandwidth = core["cache" if piece["touched"] < CACHE_BYTES else "memory"]
    busy = piece["flops"] / core["flops"] + piece["functions"] / core["functions"]
    return max(busy, piece["bytes"] / bandwidth)


def _limits(results: Results) -> dict[str, float]:
    return {name: float(np.median(values)) for name, values in results[CORE].items()}


def measures(results: Results) -> list[Measure]:
    """Return how far each loop is from the limit, its costs, and the limits."""
    core = _limits(results)
    loops = {name: piece for name, piece in results.items() if name != CORE}
    rows = [
        Measure.over(
            f"time in units of the least, {name}",
            np.asarray(piece["seconds"]) / _least(piece, core),
            target=3.0,
            higher_is_better=False,
            unit="×",
        )
        for name, piece in loops.items()
    ]
    for name, piece in loops.items():
        rows += [
            Measure.over(f"time of a step, {name}", 1e6 * np.asarray(piece["seconds"]), unit="µs"),
            Measure(f"operations of a step, {name}", 1e-6 * piece["flops"], unit="MFLOP"),
            Measure(f"functions of a step, {name}", 1e-6 * piece["functions"], unit="M"),
            Measure(f"bytes of a step, {name}", 1e-6 * piece["bytes"], unit="MB"),
            Measure(f"kernels of a step, {name}", piece["kernels"]),
        ]
        rows += [
            Measure(f"share of {kind} in the kernels' time, {name}", piece[kind]) for kind in KINDS
        ]
    limits = {
        "flops": ("products of matrices", "GFLOP/s"),
        "functions": ("exponentials, logarithms and sines", "G/s"),
        "cache": ("sums in the cache", "GB/s"),
        "memory": ("in memory", "GB/s"),
    }
    for name, (told, unit) in limits.items():
        values = 1e-9 * np.asarray(results[CORE][name])
        rows.append(Measure.over(f"limit of one core, {told}", values, unit=unit))
    return rows


def draw(results: Results) -> Figure:
    """Draw operations per second against operations per byte, under both roofs."""
    core = _limits(results)
    axes = (figure := new_figure(8.0, 5.0)).subplots()
    intensity = np.geomspace(0.02, 100.0, 200)
    for name, style in (("cache", "-"), ("memory", "--")):
        roof = np.minimum(core["flops"], intensity * core[name])
        axes.plot(intensity, 1e-9 * roof, style, color=GREY, label=f"limit, bytes in {name}")
    loops = [(name, piece) for name, piece in results.items() if name != CORE]
    for colour, (name, piece) in zip(PALETTE, loops, strict=False):
        speed = 1e-9 * piece["flops"] / np.median(piece["seconds"])
        axes.plot(piece["flops"] / piece["bytes"], speed, "o", color=colour, ms=9, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations for each byte", color=GREY)
    axes.set_ylabel("10⁹ operations for each second", color=GREY)
    axes.legend(frameon=False, fontsize=9)
    headline(axes, "inner loops under the limits of one core")
    tidy(axes)
    return figure
