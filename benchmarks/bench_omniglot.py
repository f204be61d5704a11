"""How fast: the gradient of a convolution, and training on Omniglot tasks, on one core.

Run as `PINFACTORY_OMNIGLOT=folder python benchmarks/bench_omniglot.py [convolution|training]`.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np

N_IMAGES, REPEATS = 640, 15


def best(run: Callable[[], Any]) -> float:
    """Return the shortest of some times, in milliseconds."""
    run()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return 1e3 * min(times)


def convolution() -> None:
    """Compare gradients of 32 filters with stride 2: one set, and one for each of 16 tasks."""
    from pinfactory.vision import Convolution

    images = np.random.default_rng(0).random((16, N_IMAGES // 16, 28, 28, 1), np.float32)
    ours = Convolution.start(1, 32, key=jax.random.key(0), stride=2)
    x, flat = jnp.asarray(images), jnp.asarray(images.reshape(-1, 28, 28, 1))

    def by_lax(weight: jax.Array, x: jax.Array) -> jax.Array:
        out = jax.lax.conv_general_dilated(
            x,
            weight.reshape(3, 3, 1, 32),
            (2, 2),
            ((1, 1), (1, 1)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return jnp.sum(jax.nn.relu(out) ** 2)

    def by_patches(weight: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.relu(Convolution(weight, ours.bias, 3, 2)(x)) ** 2)

    sixteen = jnp.stack([ours.weight] * 16)
    for name, loss in (("lax.conv", by_lax), ("product of patches", by_patches)):
        one, many = jax.jit(jax.grad(loss)), jax.jit(jax.vmap(jax.grad(loss)))
        times = (
            best(lambda one=one: one(ours.weight, flat).block_until_ready()),
            best(lambda many=many: many(sixteen, x).block_until_ready()),
        )
        print(f"{name:20s} one set {times[0]:6.1f} ms, 16 sets {times[1]:6.1f} ms", flush=True)


def training() -> None:
    """Print training tasks per second of committees and of a MAML with the same block."""
    from pinfactory.baselines import MAML
    from pinfactory.meta.tasks import Omniglot
    from pinfactory.vision import ImageSpecialists

    for shots in (1, 5, 10):
        tasks = Omniglot(shots=shots)
        learners = {f"{m:2d} experts": ImageSpecialists(m, max_iter=400) for m in (1, 16)}
        learners["MAML, 5 inner steps"] = MAML(max_iter=400, inner_rate=0.003)
        for name, learner in learners.items():
            learner.fit(tasks)
            # The first chunk compiles.
            seconds = min(progress.seconds for progress in learner.history_[1:]) / 100
            print(f"K = {shots:2d}, {name:20s} {16 / seconds:8.0f} tasks/s", flush=True)


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["convolution", "training"]
    for name in chosen:
        {"convolution": convolution, "training": training}[name]()
