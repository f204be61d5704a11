"""The training step of a committee by itself, for benchmarks that measure nothing else."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pinfactory.core.batches import Epochs
from pinfactory.core.constraints import Constraints, Fixed, Priors
from pinfactory.core.hierarchy import Hierarchy, stack
from pinfactory.core.learning import CommitteeLoss, Data, Learner, State, Utility
from pinfactory.core.training import Run, train


class Steps(NamedTuple):
    """A committee before its first step, what it learns from, and how."""

    learner: Learner
    state: State
    data: Data
    batch_size: int

    @classmethod
    def of(
        cls,
        hierarchy: Hierarchy,
        utility: Utility,
        x: np.ndarray,
        y: np.ndarray,
        batch_size: int,
    ) -> "Steps":
        """Prepare gradient ascent on the likelihood of a committee."""
        data = Data(*map(jax.device_put, (x, y, np.ones(len(x), np.float32))))
        learner = Learner(CommitteeLoss(utility, mixture=True))
        priors = Priors.running(hierarchy(data.x[0]), 0.99, 0.99)
        resources = tuple(Fixed(jnp.asarray(beta)) for beta in (25.0, 20.0))
        constraints = Constraints(priors, resources)
        return cls(learner, learner.init(hierarchy, constraints), data, batch_size)

    def run(self, n_steps: int) -> int:
        """Take steps in the training loop; return how many rows they had."""
        run = Run.start(jnp.stack([jax.random.key(0)]), stack([self.state]))
        batches = Epochs(len(self.data.weight), self.batch_size)
        train(self.learner, run, self.data, batches=batches, steps=n_steps, chunk=n_steps)
        return n_steps * self.batch_size

    def program(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return one step as a function of arrays, and its arguments."""
        batch = jax.tree.map(lambda leaf: leaf[: self.batch_size], self.data)
        arrays, static = eqx.partition(self.state, eqx.is_array)

        def step(learner: Learner, static: Any, key: Any, arrays: Any, batch: Data) -> Any:
            state, info = learner.step(key, eqx.combine(arrays, static), batch)
            return eqx.filter(state, eqx.is_array), info

        return partial(step, self.learner, static), (jax.random.key(0), arrays, batch)
