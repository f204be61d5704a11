"""Sine curves that differ in amplitude and phase (Finn et al. 2017; Section 6.1 of the paper)."""

import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from pinfactory import settings as check

from ._protocol import Episode, Samples


class SinusoidRecipe(NamedTuple):
    """A curve y = a sin(x + b) and where it is looked at."""

    amplitude: Array | np.ndarray
    phase: Array | np.ndarray
    support: Array | np.ndarray
    query: Array | np.ndarray


class Sinusoids(eqx.Module):
    """Regression tasks y = a · sin(x + b), each seen at a few points.

    Parameters
    ----------
    amplitude
        Range of a.
    phase
        Range of b: [0, 2π] as in the paper; published results of others use [0, π].
    shots
        Samples in a support set.
    queries
        Samples in a query set.
    domain
        Range of x.

    Examples
    --------
    >>> import numpy as np
    >>> tasks = Sinusoids(shots=5)
    >>> recipes = tasks.draw(np.random.default_rng(0), 100)
    >>> recipes.support.shape
    (100, 5)
    """

    amplitude: tuple[float, float] = eqx.field(static=True, default=(0.1, 5.0))
    phase: tuple[float, float] = eqx.field(static=True, default=(0.0, 2.0 * math.pi))
    shots: int = eqx.field(static=True, default=10)
    queries: int = eqx.field(static=True, default=15)
    domain: tuple[float, float] = eqx.field(static=True, default=(-5.0, 5.0))

    def __check_init__(self) -> None:
        check.integer("shots", self.shots, 1)
        check.integer("queries", self.queries, 1)
        for name in ("amplitude", "phase", "domain"):
            bounds = getattr(self, name)
            if not isinstance(bounds, tuple) or len(bounds) != 2 or not bounds[0] <= bounds[1]:
                raise ValueError(f"`{name}` must be (low, high), but got {bounds!r}.")
            for bound in bounds:
                check.number(name, bound, -math.inf)

    def draw(
        self, random: np.random.Generator, n_tasks: int, split: str = "train"
    ) -> SinusoidRecipe:
        """Return amplitudes, phases and points; all splits are alike, for no task occurs twice."""

        def uniform(bounds: tuple[float, float], *shape: int) -> np.ndarray:
            return random.uniform(*bounds, (n_tasks, *shape)).astype(np.float32)

        return SinusoidRecipe(
            uniform(self.amplitude),
            uniform(self.phase),
            uniform(self.domain, self.shots),
            uniform(self.domain, self.queries),
        )

    def build(self, recipe: PyTree[Array]) -> Episode:
        """Return the samples, with inputs and targets of one dimension."""

        def samples(x: Array) -> Samples:
            return Samples(x[:, None], (recipe.amplitude * jnp.sin(x + recipe.phase))[:, None])

        return Episode(samples(recipe.support), samples(recipe.query))
