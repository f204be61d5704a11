"""How good an agent is in new tasks, and what its choices say about them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pinfactory import settings as check

from ._families import TaskFamily
from ._information import MetaInformation, entropy, groups, information_about
from ._play import Played, play
from ._policy import MetaPolicy


@dataclasses.dataclass(frozen=True)
class MetaEvaluation:
    """One episode in each of n tasks.

    Attributes
    ----------
    returns, lengths
        Of every episode, the steps of the probe included.
    experts
        Who was chosen.
    responsibilities
        p(m|τ).
    tasks
        What tells the tasks apart, by name.
    """

    returns: np.ndarray
    lengths: np.ndarray
    experts: np.ndarray
    responsibilities: np.ndarray
    tasks: dict[str, np.ndarray]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    def information_about(self, parameter: str) -> float:
        """Return I(parameter; M) in bits: of its values if they are few, else of its quarters."""
        return information_about(groups(self.tasks[parameter]), self.responsibilities)


def meet(
    policy: MetaPolicy,
    family: TaskFamily,
    n_tasks: int,
    deterministic: bool,
    seeds: tuple[int, int],
) -> tuple[Any, Played]:
    """Draw tasks and play an episode in each; return the tasks and what happened.

    Of the seeds one is the agent's, so that agents meet different tasks, the other the meeting's.
    """
    if family.env.max_steps is None:
        raise ValueError("An environment must have `max_steps` to be evaluated, but got None.")
    mine, seed = seeds
    random = np.random.default_rng([mine, 1, seed])
    params = family.draw(random, check.integer("n_tasks", n_tasks, 1))
    return params, play(
        family.env,
        jax.random.key(seed),
        params,
        policy,
        jnp.asarray(deterministic),
        jnp.asarray(family.env.max_steps),
    )


def evaluation(family: TaskFamily, params: Any, played: Played, n_experts: int) -> MetaEvaluation:
    """Return what happened as plain arrays."""
    return MetaEvaluation(
        np.asarray(played.returns),
        np.asarray(played.lengths),
        np.asarray(played.expert),
        np.asarray(played.responsibilities)[:, :n_experts],
        family.describe(params),
    )


def information(family: TaskFamily, params: Any, played: Played, n_experts: int) -> MetaInformation:
    """Return the information that selector and experts processed, in bits."""
    responsibilities = np.asarray(played.responsibilities)[:, :n_experts]
    shares = responsibilities.mean(axis=0)
    return MetaInformation(
        max(0.0, float(entropy(shares) - entropy(responsibilities).mean())),
        float(jnp.sum(played.meter.share * played.meter.bits)),
        shares,
        float(2.0 ** entropy(shares)),
        {
            name: information_about(groups(values), responsibilities)
            for name, values in family.describe(params).items()
        },
    )
