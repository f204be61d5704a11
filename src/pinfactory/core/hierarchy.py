"""A selector and its experts as one module: p(m|x), p(y|x,m) and p(y|x)."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
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
    """Maps one input to a posterior."""

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

    Where only the k most probable experts were asked, `chosen` has their numbers, and `answers` and
    all that is said of experts below has an axis of k in place of M. Their probabilities are then
    renormalised, q(m|x) = p(m|x) / Σ p(m′|x) over these k, while `selections` has all p(m|x).
    """

    selections: tuple[Categorical, ...]
    answers: Family
    chosen: Int[Array, "*batch k"] | None = None

    @property
    def stages(self) -> tuple[Family, ...]:
        """All posteriors, from the outermost selector to the experts."""
        return (*self.selections, self.answers)

    @property
    def reach(self) -> tuple[Float[Array, "..."], ...]:
        """For every stage, the probability that the decision comes to each of its members."""
        reach = [jnp.ones(self.selections[0].batch_shape)]
        if self.chosen is not None:
            return (reach[0], jnp.exp(self.log_responsibilities))
        for selection in self.selections:
            reach.append(reach[-1][..., None] * selection.probs)
        return tuple(reach)

    def weighted_stages(
        self, weights: Float[Array, " n"]
    ) -> Iterator[tuple[Family, Float[Array, "n ..."], Int[Array, "n k"] | None]]:
        """Yield the posteriors of every stage for n inputs, how much each counts, and `chosen`."""
        chosen = (*(None for _ in self.selections), self.chosen)
        for posterior, reach, own in zip(self.stages, self.reach, chosen, strict=True):
            yield posterior, weights.reshape(-1, *(1,) * (reach.ndim - 1)) * reach, own

    @property
    def responsibilities(self) -> Float[Array, "..."]:
        """Return p(m|x) of the experts themselves, with one axis for each level of selection."""
        return self.reach[-1]

    @property
    def log_responsibilities(self) -> Float[Array, "..."]:
        """The logarithm of `responsibilities`."""
        if self.chosen is not None:
            log_probs = self.selections[0].log_probs
            return jax.nn.log_softmax(jnp.take_along_axis(log_probs, self.chosen, axis=-1))
        log_share = jnp.zeros(())
        for selection in self.selections:
            log_share = log_share[..., None] + selection.log_probs
        return log_share

    @property
    def outline(self) -> tuple[Family, ...]:
        """Stages with all experts, asked or not, for the shapes; their values do not matter."""
        if self.chosen is None:
            return self.stages
        (selection,), axis = self.selections, self.chosen.ndim - 1
        n_experts = selection.log_probs.shape[-1]
        answers = jax.tree.map(
            lambda leaf: jnp.repeat(leaf.take(jnp.array([0]), axis), n_experts, axis), self.answers
        )
        return (selection, answers)

    def at_chosen(self, families: Sequence[Family]) -> tuple[Family, ...]:
        """Return values of all members of every stage for the members that were used."""
        if self.chosen is None:
            return tuple(families)
        selection, experts = families
        return (selection, jax.tree.map(lambda leaf: leaf[self.chosen], experts))

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
    """

    selector: Callable[..., Array]  #: maps x to M logits
    #: One pytree of M experts: every array has a leading axis of length M.
    experts: "Expert | Hierarchy"
    #: Experts that may be chosen. Switching some off trains hierarchies of different sizes side by
    #: side in one compiled program.
    available: Bool[Array, " m"]
    #: How many experts are asked, the most probable ones; None for all. For experts that are not
    #: hierarchies themselves.
    top_k: int | None = eqx.field(static=True, default=None, kw_only=True)

    def __call__(self, x: PyTree[Array], *, key: Key[Array, ""] | None = None) -> Decision:
        """Return p(m|x) and all p(y|x,m), or those of the `top_k` most probable experts."""
        selector_key, expert_key = (None, None) if key is None else jax.random.split(key)
        selection = self.select(x, key=selector_key)
        ask = eqx.filter_vmap(lambda expert: expert(x, key=expert_key))
        if self.top_k is not None and self.top_k < len(self.available):
            _, chosen = jax.lax.top_k(selection.log_probs, self.top_k)
            # Copies of their parameters, whose cost does not depend on how many there are.
            answers = ask(self.expert(chosen))
            assert isinstance(answers, Family)
            return Decision((selection,), answers, chosen)
        answers = ask(self.experts)
        if isinstance(answers, Decision):
            return Decision((selection, *answers.selections), answers.answers)
        return Decision((selection,), answers)

    def select(self, x: PyTree[Array], *, key: Key[Array, ""] | None = None) -> Categorical:
        """Return p(m|x) without evaluating any expert."""
        logits = self.selector(x, key=key)
        return Categorical.from_logits(jnp.where(self.available, logits, NEVER))

    def expert(self, m: Int[Array, "*several"]) -> "Expert | Hierarchy":
        """Return expert m alone, or several side by side; m may be traced."""
        return take_expert(self.experts, m)

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
        """Return p(m|x) of all experts of the last level, without evaluating any."""
        selection = self.select(x)
        if not isinstance(self.experts, Hierarchy):
            return selection
        below = eqx.filter_vmap(lambda hierarchy: hierarchy.select_last(x))(self.experts)
        return Categorical((selection.log_probs[:, None] + below.log_probs).ravel())

    def best(self, x: PyTree[Array]) -> Int[Array, " n"]:
        """Return the number of the most probable expert of the last level for each input.

        By scores: there is no softmax over all experts.
        """
        if isinstance(self.experts, Hierarchy):
            return first_largest(jax.vmap(self.select_last)(x).log_probs)
        return first_largest(jnp.where(self.available, jax.vmap(self.selector)(x), NEVER))

    def select_asked(self, x: PyTree[Array]) -> Categorical:
        """Return q(m|x) of all experts of the last level: p(m|x) of those that are asked."""
        selection = self.select_last(x)
        if self.top_k is None or self.top_k >= len(self.available):
            return selection
        _, chosen = jax.lax.top_k(selection.log_probs, self.top_k)
        asked = jnp.zeros(len(self.available), bool).at[chosen].set(True)
        return Categorical.from_logits(jnp.where(asked, selection.log_probs, NEVER))

    def last_expert(self, m: Int[Array, ""]) -> Expert:
        """Return expert m of the last level alone; m may be traced."""
        if not isinstance(self.experts, Hierarchy):
            return self.expert(m)  # type: ignore[return-value]
        n_below = math.prod(self.experts.sizes)
        inner = self.expert(m // n_below)
        assert isinstance(inner, Hierarchy)
        return inner.last_expert(m % n_below)


def first_largest(scores: Float[Array, "*n m"]) -> Int[Array, "*n"]:
    """Return the first of the largest scores.

    A maximum and a minimum are computed many at a time, which `argmax` is not.
    """
    n_scores = scores.shape[-1]
    largest = scores == jnp.max(scores, axis=-1, keepdims=True)
    return jnp.min(jnp.where(largest, jnp.arange(n_scores), n_scores - 1), axis=-1)


def take_expert(tree: Tree, m: Int[Array, "..."]) -> Tree:
    """Return the parts of expert m, or of several, from arrays with a leading axis of experts."""
    return jax.tree.map(lambda leaf: leaf[m] if eqx.is_array(leaf) else leaf, tree)


def repeat_answers(answers: Tree, n_experts: int) -> Tree:
    """Return answers to n inputs as if every expert gave them, of shape (n, experts)."""
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf[:, None], (len(leaf), n_experts, *leaf.shape[1:])),
        answers,
    )


def stack(trees: Sequence[Tree]) -> Tree:
    """Join pytrees of the same structure: every array gets a leading axis."""
    return _by_numpy(lambda *leaves: np.stack(leaves), *trees)


def pick(tree: Tree, index: int) -> Tree:
    """Return one of the pytrees that `stack` has joined."""
    return _by_numpy(lambda leaf: leaf[index], tree)


def _by_numpy(change: Callable[..., np.ndarray], *trees: Tree) -> Tree:
    """Return the first of some pytrees with what NumPy makes of the arrays of all.

    JAX would compile a program for every shape. All arrays go to the device at once, which takes
    less time than one after the other.
    """
    columns = list(zip(*map(jax.tree.leaves, trees), strict=True))
    arrays = {n: column for n, column in enumerate(columns) if eqx.is_array(column[0])}
    made = jax.device_put({n: change(*map(np.asarray, column)) for n, column in arrays.items()})
    leaves = [made.get(n, column[0]) for n, column in enumerate(columns)]
    return jax.tree.unflatten(jax.tree.structure(trees[0]), leaves)


def zeros_like(shapes: Any) -> Any:
    """Return zeros of the given shapes and types.

    By NumPy, because JAX would compile a program for every shape.
    """
    return jax.device_put(jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes))


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
    return Hierarchy(selector(selector_key), experts, jax.device_put(np.ones(n_experts, bool)))
