"""Who acts, and how: a selector that may hold on to its choice, and the expert it chose."""

from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from pinfactory.core.families import Family
from pinfactory.core.hierarchy import Decision, Hierarchy

from ._actions import Actions
from ._multi_categorical import invert
from ._normalise import Moments

Answer = TypeVar("Answer", bound=Family)


class Memory(eqx.Module):
    """The expert that acts in each environment, and for how many steps it has."""

    expert: Int[Array, " n"]
    held: Int[Array, " n"]

    @classmethod
    def start(cls, n: int) -> "Memory":
        """Begin with nobody chosen."""
        zeros = np.zeros(n, np.int32)
        return cls(jax.device_put(zeros), jax.device_put(zeros))


class Choice(eqx.Module):
    """A decision in each environment: the expert, whether it was chosen just now, the action.

    The action is in the experts' units (see `Actions`), and the log-probabilities are those of the
    policy that decided.
    """

    expert: Int[Array, "*batch"]
    chosen: Bool[Array, "*batch"]
    action: Shaped[Array, "..."]
    log_selector: Float[Array, "*batch"]
    log_expert: Float[Array, "*batch"]


class Policy(eqx.Module):
    """A hierarchy that sees observations in units of their deviation.

    Attributes
    ----------
    hold
        Steps for which a chosen expert acts before the selector chooses again.
    """

    hierarchy: Hierarchy
    observations: Moments
    hold: Int[Array, ""]
    actions: Actions

    def decide(self, observation: Float[Array, "n o"]) -> Decision:
        """Return p(m|x) and p(a|x,m) for n observations."""
        return jax.vmap(self.hierarchy)(self.observations(observation))

    def act(
        self,
        observation: Float[Array, "n o"],
        fresh: Bool[Array, " n"],
        memory: Memory,
        uniform: Float[Array, "n k"],
        deterministic: Bool[Array, ""] | bool = False,
    ) -> tuple[Memory, Choice]:
        """Choose experts and actions.

        Parameters
        ----------
        observation
            One for each environment.
        fresh
            Where an episode begins.
        memory
            Who acted last.
        uniform
            `n_noise` uniform numbers for each decision.
        deterministic
            Whether to take the most probable expert and the action it favours.
        """
        decision = self.decide(observation)
        (selection,) = decision.selections
        chosen = fresh | (memory.held >= self.hold)
        drawn = jnp.where(
            deterministic,
            jnp.argmax(selection.log_probs, axis=-1),
            invert(selection, uniform[:, 0]),
        )
        expert = jnp.where(chosen, drawn, memory.expert).astype(jnp.int32)
        answer = of_expert(decision.answers, expert)
        action = jnp.where(
            deterministic, self.actions.mode(answer), self.actions.draw(answer, uniform[:, 1:])
        )
        choice = Choice(expert, chosen, action, selection.log_prob(expert), answer.log_prob(action))
        return Memory(expert, jnp.where(chosen, 1, memory.held + 1)), choice


def n_noise(actions: Actions) -> int:
    """Return how many uniform numbers one decision needs: the expert, and its action."""
    return 1 + actions.n_noise


def of_expert(answers: Answer, expert: Int[Array, " n"]) -> Answer:
    """Return the answer of one expert for each of n inputs."""

    def take(leaf: Array) -> Array:
        index = expert.reshape(-1, *(1,) * (leaf.ndim - 1))
        return jnp.take_along_axis(leaf, index, axis=1)[:, 0]

    return jax.tree.map(take, answers)
