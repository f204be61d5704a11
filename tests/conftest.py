"""Small things that many tests need."""

import gc
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

# Tests compile much and compute little: programs that compile fast beat fast programs. Those cut
# into parts for several threads take longer in sum. Tests marked `optimised` compute as users do.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1",
)
if tuple(map(int, version("jax").split(".")[:2])) >= (0, 12):  # which ends at unknown flags
    known = os.environ["XLA_FLAGS"].replace("--xla_cpu_use_fusion_emitters=false", "")
    os.environ["XLA_FLAGS"] = known
# Workers, the processes they start and the next run share what one has compiled.
os.environ.setdefault(
    "PINFACTORY_COMPILATION_CACHE",
    str(Path(__file__).parents[1] / ".pytest_cache" / "programs"),
)

import equinox as eqx
import hypothesis
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from sklearn.datasets import make_blobs, make_circles

from pinfactory.core.compiling import enable_compilation_cache
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import Decision, FamilyExpert, Hierarchy, assemble
from pinfactory.core.learning import Data

enable_compilation_cache()
# Reading a program from disk takes as long as compiling a small one, and writing it more.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)

# The same examples everywhere, however busy the machine is.
hypothesis.settings.register_profile(
    "same",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("same")


def pytest_collection_finish() -> None:
    """Search for garbage seldom, and never in modules: they live to the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture
def types_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users have it, for values of wrong types that are handed over on purpose."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def random_decision(rng: np.random.Generator) -> Callable[..., Decision]:
    """Decisions of n inputs over any number of levels, with Categorical answers."""

    def make(n: int, *sizes: int, sharpness: float = 2.0) -> Decision:
        stages = [
            Categorical.from_logits(
                jnp.asarray(sharpness * rng.normal(size=(n, *sizes[: i + 1])), jnp.float32)
            )
            for i in range(len(sizes))
        ]
        return Decision(tuple(stages[:-1]), stages[-1])

    return make


@pytest.fixture(scope="session")
def linear_hierarchy() -> Callable[[jax.Array, int], Hierarchy]:
    """A linear selector over linear two-class experts of two inputs."""

    def make(key: jax.Array, n_experts: int) -> Hierarchy:
        return assemble(
            key,
            lambda k: eqx.nn.Linear(2, n_experts, key=k),
            lambda k: FamilyExpert(eqx.nn.Linear(2, 2, key=k), Categorical.from_logits),
            n_experts,
        )

    return make


def as_data(x: np.ndarray, y: np.ndarray) -> Data:
    return Data(jnp.asarray(x, jnp.float32), jnp.asarray(y), jnp.ones(len(x)))


@pytest.fixture(scope="session")
def circles() -> Data:
    return as_data(*make_circles(500, noise=0.05, factor=0.5, random_state=0))


@pytest.fixture(scope="session")
def xor_blobs() -> Data:
    """Four blobs, two classes that no line separates."""
    centres = [[2, 2], [-2, -2], [2, -2], [-2, 2]]
    x, blob = make_blobs(500, centers=centres, cluster_std=0.5, random_state=0)
    return as_data(x, blob // 2)
