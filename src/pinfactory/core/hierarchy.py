"""A selector and its experts as one module: p(m|x), p(y|x,m) and p(y|x)."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from .families import Categorical, Family

Tree = TypeVar("Tree")

# Small enough that softmax gives exactly zero, finite so that 0 · log 0 stays zero.
NEVER = -1e9

# Key n of those that a key stands for, as in a split. Compiled: operation by operation it takes ten
# times as long, and a committee needs one key for each of its layers.
nth_key = jax.jit(jax.random.fold_in)


class Expert(eqx.Module):
    """Anything that maps one input to a posterior family."""

    @abstractmethod
    def __call__(self, x: PyTree[Array], *, key: Key[Array, ""] | None = None) -> Family:
        """Return p(y|x)."""


class FamilyExpert(Expert):
    """A network whose outputs `head` turns into a posterior, such as logits into a Categorical."""

    network: Callable[..., Array]
    head: Callable[[Array], Family]

    def __call__(self, x: PyTree[Array], *, key: Key[Array, ""] | None = None) -> Family:
        return self.head(self.network(x, key=key))


class Decision(eqx.Module):
    """What a hierarchy decides for an input, before anything is sampled.

    With one level of selection `selections` is `(p(m|x),)`, with experts on the last axis, and
    `answers` is p(y|x,m) with a batch axis of M. Every further level adds a selection whose batch
    axes are the experts above it.
    """

    selections: tuple[Categorical, ...]
    answers: Family

    @property
    def stages(self) -> tuple[Family, ...]:
        """All posteriors, from the outermost selector to the experts."""
        return (*self.selections, self.answers)

    @property
    def reach(self) -> tuple[Float[Array, "..."], ...]:
        """For every stage, the probability that the decision comes to each of its members."""
        reach = [jnp.ones(self.selections[0].batch_shape)]
        for selection in self.selections:
            reach.append(reach[-1][..., None] * selection.probs)
        return tuple(reach)

    @property
    def responsibilities(self) -> Float[Array, "..."]:
        """Return p(m|x) of the experts themselves, with one axis for each level of selection."""
        return self.reach[-1]

    @property
    def log_responsibilities(self) -> Float[Array, "..."]:
        """The logarithm of `responsibilities`."""
        log_share = jnp.zeros(())
        for selection in self.selections:
            log_share = log_share[..., None] + selection.log_probs
        return log_share

    @property
    def flat(self) -> "Decision":
        """The same with one selection, p(m|x) of all experts of the last level side by side."""
        levels, batch = len(self.selections), self.selections[0].batch_shape
        if levels == 1:
            return self

        def together(leaf: Array) -> Array:
            return leaf.reshape(*batch, -1, *leaf.shape[len(batch) + levels :])

        selection = Categorical(together(self.log_responsibilities))
        return Decision((selection,), jax.tree.map(together, self.answers))


class Hierarchy(eqx.Module):
    """A selector over experts; the experts may be hierarchies themselves.

    Written for a single input; the caller vmaps over a batch.

    Attributes
    ----------
    selector
        Maps x to M logits.
    experts
        One pytree of M experts: every array has a leading axis of length M.
    available
        Experts that may be chosen. Switching some off trains hierarchies of different sizes side
        by side in one compiled program.
    """

    selector: Callable[..., Array]
    experts: "Expert | Hierarchy"
    available: Bool[Array, " m"]

    def __call__(self, x: PyTree[Array], *, key: Key[Array, ""] | None = None) -> Decision:
        """Return p(m|x) and all p(y|x,m)."""
        selector_key, expert_key = (None, None) if key is None else jax.random.split(key)
        selection = self.select(x, key=selector_key)
        answers = eqx.filter_vmap(lambda expert: expert(x, key=expert_key))(self.experts)
        if isinstance(answers, Decision):
            return Decision((selection, *answers.selections), answers.answers)
        return Decision((selection,), answers)

    def select(self, x: PyTree[Array], *, key: Key[Array, ""] | None = None) -> Categorical:
        """Return p(m|x) without asking any expert."""
        logits = self.selector(x, key=key)
        return Categorical.from_logits(jnp.where(self.available, logits, NEVER))

    def expert(self, m: Int[Array, ""]) -> "Expert | Hierarchy":
        """Return expert m alone; m may be traced."""
        return jax.tree.map(lambda leaf: leaf[m] if eqx.is_array(leaf) else leaf, self.experts)

    # ------------------------------------------ experts of the last level, numbered through

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many experts there are for each selector, from the outermost level on."""
        own = self.available.shape[-1]
        return (own, *self.experts.sizes) if isinstance(self.experts, Hierarchy) else (own,)

    @property
    def last_experts(self) -> Expert:
        """The experts of the last level; arrays have one leading axis for each level."""
        inner = self.experts
        return inner.last_experts if isinstance(inner, Hierarchy) else inner

    @property
    def last_available(self) -> Bool[Array, " leaves"]:
        """Which experts of the last level may be chosen."""
        found, inner = self.available, self.experts
        while isinstance(inner, Hierarchy):
            found, inner = found[..., None] & inner.available, inner.experts
        return found.ravel()

    def select_last(self, x: PyTree[Array]) -> Categorical:
        """Return p(m|x) of all experts of the last level, without asking any."""
        selection = self.select(x)
        if not isinstance(self.experts, Hierarchy):
            return selection
        below = eqx.filter_vmap(lambda hierarchy: hierarchy.select_last(x))(self.experts)
        return Categorical((selection.log_probs[:, None] + below.log_probs).ravel())

    def last_expert(self, m: Int[Array, ""]) -> Expert:
        """Return expert m of the last level alone; m may be traced."""
        if not isinstance(self.experts, Hierarchy):
            return self.expert(m)  # type: ignore[return-value]
        n_below = math.prod(self.experts.sizes)
        inner = self.expert(m // n_below)
        assert isinstance(inner, Hierarchy)
        return inner.last_expert(m % n_below)


def stack(trees: Sequence[Tree]) -> Tree:
    """Put pytrees of the same structure side by side: every array gets a leading axis."""

    def together(*leaves: Any) -> Any:
        if not eqx.is_array(leaves[0]):
            return leaves[0]
        # By NumPy, because JAX would compile a program for every shape.
        return jax.device_put(np.stack(leaves))

    return jax.tree.map(together, *trees)


def pick(tree: Tree, index: int) -> Tree:
    """Return one of the pytrees that `stack` put side by side."""
    return jax.tree.map(
        lambda leaf: jax.device_put(np.asarray(leaf)[index]) if eqx.is_array(leaf) else leaf, tree
    )


def zeros_like(shapes: Any) -> Any:
    """Return zeros of the given shapes and types.

    By NumPy, because JAX would compile a program for every shape.
    """
    return jax.tree.map(lambda s: jax.device_put(np.zeros(s.shape, s.dtype)), shapes)


def assemble(
    key: Key[Array, ""],
    selector: Callable[[Key[Array, ""]], Callable[..., Array]],
    expert: Callable[[Key[Array, ""]], "Expert | Hierarchy"],
    n_experts: int,
) -> Hierarchy:
    """Build a hierarchy from a factory of selectors and a factory of experts.

    A factory may itself call `assemble`, which gives selectors over selectors over experts.
    """
    selector_key, expert_key = (nth_key(key, n) for n in range(2))
    # One by one, because vmapped random initialisation takes long to compile.
    experts = stack([expert(nth_key(expert_key, n)) for n in range(n_experts)])
    return Hierarchy(selector(selector_key), experts, jnp.ones(n_experts, bool))
