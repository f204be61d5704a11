"""The policy of an agent: a selector that may keep its choice for some steps, and its experts."""

from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from pinfactory.core.families import Family
from pinfactory.core.hierarchy import Decision, Hierarchy

from .actions import Actions, invert_cdf
from .normalise import Moments

Tree = TypeVar("Tree")


class PolicyState(eqx.Module):
    """The expert that acts in each environment, and for how many steps it has."""

    expert: Int[Array, " n"]
    steps_held: Int[Array, " n"]

    @classmethod
    def start(cls, n: int) -> "PolicyState":
        """Begin with no expert selected."""
        return cls(*jax.device_put((np.zeros(n, np.int32), np.zeros(n, np.int32))))


class ActionSample(NamedTuple):
    """An action in the expert's units, its log-probability, and the posterior it came from."""

    action: Shaped[Array, "..."]
    log_prob: Float[Array, "..."]
    answer: Family


class HierarchicalAction(eqx.Module):
    """The expert that acts in each environment, whether it was selected just now, its action.

    The action is in the experts' units (see `Actions`), and the log-probabilities are those of the
    policy that acted.
    """

    expert: Int[Array, "*batch"]
    selected: Bool[Array, "*batch"]
    action: Shaped[Array, "..."]
    log_prob_selector: Float[Array, "*batch"]
    log_prob_expert: Float[Array, "*batch"]


class Policy(eqx.Module):
    """A hierarchy that sees normalised observations.

    Attributes
    ----------
    hold
        Steps for which a selected expert acts before the selector chooses again.
    """

    hierarchy: Hierarchy
    observations: Moments
    hold: Int[Array, ""]
    actions: Actions

    @property
    def n_noise(self) -> int:
        """Uniform numbers that one decision needs: for the expert, and for its action."""
        return 1 + self.actions.n_noise

    def decide(self, observation: Float[Array, "n o"]) -> Decision:
        """Return p(m|x) and p(a|x,m) for n observations."""
        return jax.vmap(self.hierarchy)(self.observations(observation))

    def act(
        self,
        observation: Float[Array, "n o"],
        starts: Bool[Array, " n"],
        state: PolicyState,
        uniform: Float[Array, "n k"],
        deterministic: Bool[Array, ""] | bool = False,
    ) -> tuple[PolicyState, HierarchicalAction]:
        """Select experts and actions, the most probable ones if `deterministic`.

        `starts` tells where an episode begins; `uniform` has `n_noise` numbers for each
        environment.
        """
        decision = self.decide(observation)
        (selection,) = decision.selections
        selected = starts | (state.steps_held >= self.hold)
        drawn = jnp.where(
            deterministic,
            jnp.argmax(selection.log_probs, axis=-1),
            invert_cdf(selection, uniform[:, 0]),
        )
        expert = jnp.where(selected, drawn, state.expert).astype(jnp.int32)
        answer = select_answers(decision.answers, expert)
        sample = sample_action(self.actions, answer, uniform[:, 1:], deterministic)
        action = HierarchicalAction(
            expert, selected, sample.action, selection.log_prob(expert), sample.log_prob
        )
        return PolicyState(expert, jnp.where(selected, 1, state.steps_held + 1)), action


def sample_action(
    actions: Actions,
    answer: Family,
    uniform: Float[Array, "n k"],
    deterministic: Bool[Array, ""] | bool = False,
) -> ActionSample:
    """Sample an action of each of n posteriors, or take the most probable one."""
    action = jnp.where(deterministic, actions.mode(answer), actions.draw(answer, uniform))
    return ActionSample(action, answer.log_prob(action), answer)


def select_answers(answers: Tree, expert: Int[Array, " n"]) -> Tree:
    """Return the answer of one expert for each of n inputs, from answers of shape (n, experts)."""
    return jax.tree.map(lambda leaf: take_one(leaf, expert), answers)


def take_one(values: Float[Array, "n m ..."], index: Int[Array, " n"]) -> Float[Array, "n ..."]:
    """Return one entry of each of n rows."""
    index = index.reshape(-1, *(1,) * (values.ndim - 1))
    return jnp.take_along_axis(values, index, axis=1)[:, 0]


def apply_experts(experts: PyTree, x: Float[Array, "n o"]) -> Family:
    """Return the answers of n experts to one input each."""
    return eqx.filter_vmap(lambda expert, x: expert(x))(experts, x)
