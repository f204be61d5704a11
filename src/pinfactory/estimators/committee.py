"""What classifier and regressor share once they are fitted: questions to the hierarchy."""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from pinfactory import settings as check
from pinfactory.core.batches import padded, padded_length
from pinfactory.core.compiling import compiled, compiled_with_kernels, library_settings
from pinfactory.core.growth import BEYOND_NOISE
from pinfactory.core.hierarchy import Decision, Hierarchy
from pinfactory.networks import SoftTree
from pinfactory.tables import Rules
from pinfactory.tree_search import TreeSearch

from .beyond import Beyond
from .chunked import as_chunks
from .large import known_columns
from .online import OnlineLearner
from .table_learner import BLOCK, Inputs, select

# If inputs tell fewer effective experts apart than this, 2^I(X;M), labour is not divided.
COLLAPSED = 1.05

# What committees have learned, and the search in it: not a part of them, nor of their files.
_searches: "WeakKeyDictionary[Committee, tuple[Hierarchy, TreeSearch]]" = WeakKeyDictionary()


class Committee(OnlineLearner):
    """A selector and simple experts that can be asked.

    A subclass says in `_mixture` how the answers of all experts become one.
    """

    _mixture: Callable[[Hierarchy, Inputs], PyTree[Array]]

    @abstractmethod
    def _measured_targets(self, y: np.ndarray) -> np.ndarray:
        """Return class codes, or a column for each target."""

    @property
    def _extension(self) -> Beyond | None:
        """How answers go on beyond all rows that experts learned from, if not as they do there."""
        return None

    @property
    def verdict_(self) -> str:
        """Say whether one expert is enough, several share the work, or training collapsed."""
        check_is_fitted(self)
        n_available = int(np.sum(np.asarray(self.state_.model.last_available)))
        in_use = self.effective_experts_
        if self.n_experts_ == 1:
            return "There is one expert."
        if n_available == 1 and self.gain_ is None:
            return "One expert is in use. Nothing was held out to tell whether more are better."
        if n_available == 1:
            return "One expert is enough: on held-out samples more of them gained nothing."
        mean, error = self.gain_ or (0.0, 0.0)
        bits = self.information_.selector
        if 2.0**bits < COLLAPSED and mean <= BEYOND_NOISE * error:
            found = (
                f"one of {n_available} experts answers nearly everything"
                if in_use < COLLAPSED
                else f"the selector hardly looks at its inputs ({bits:.2f} bits)"
            )
            price = "beta_selector" if self.selector_bits is None else "selector_bits"
            return (
                f"Training collapsed: {found}. Its price may be too high (raise {price}), or the "
                "start too poor (start='auto', more n_init)."
            )
        told = f"{in_use:.1f} of {self.n_experts_} experts are in use"
        if self.gain_ is None:
            return f"{told}."
        return f"{told}: on held-out samples they gain {mean:.3f} ± {error:.3f} over one."

    def responsibilities(self, X: Any) -> np.ndarray:
        """Return p(m|x) with one row for each sample and one column for each expert."""
        return self._ask(select, X)

    def assign(self, X: Any) -> np.ndarray:
        """Return the index of the most responsible expert for each sample."""
        return self.responsibilities(X).argmax(axis=1)

    def explain(self, feature_names: Sequence[str] | None = None) -> Any:
        """Return a table of every linear expert's weights in the data's own units.

        Parameters
        ----------
        feature_names : sequence of str, optional
            Names of the features; those seen in `fit`, or x0, x1, …, if not given.

        Returns
        -------
        pandas.DataFrame
            A row for every expert (and class or output, if several): its share of the data, the
            bits it processes, intercept and weights. For two classes they give the log-odds of
            ``classes_[1]``.
        """
        from .explain import explain

        return explain(self, feature_names)

    def rules(self, X: Any = None, y: Any = None) -> Rules:
        """Return where each expert in use applies and what it says; print it, or take its `frame`.

        Parameters
        ----------
        X, y : samples and targets, optional
            What to measure the rules on; by default those of `fit`, if that was given a data frame.

        Returns
        -------
        Rules
            For each expert a short condition in the user's columns with its fidelity, weights in
            the user's units with standard errors, its share, bits, and score on its rows.
        """
        from .rules import find_rules

        check_is_fitted(self)
        if (X is None) != (y is None):
            raise ValueError("`rules` needs both samples and targets, rules(X, y), or neither.")
        if X is not None:
            numeric = not hasattr(self, "classes_")
            X, y, weight = self._checked(X, y, None, reset=False, numeric=numeric)
            return find_rules(self, X, self._measured_targets(y), weight)
        if not hasattr(self, "rules_"):
            raise ValueError(
                "`rules` needs samples and targets, rules(X, y), unless `fit` was given a data "
                "frame and nothing was learned since."
            )
        return self.rules_

    def explain_row(self, X: Any) -> Any:
        """Return who decided about the only row of `X`, and why, and what would change it.

        Returns
        -------
        RowExplanation
            The answer, the expert who decided, the contribution of each column, and the nearest
            change of one column that would make it another expert's case.
        """
        from .row import explain_row

        check_is_fitted(self)
        return explain_row(self, X)

    def attributions(self, X: Any) -> Any:
        """Return what every column contributes to the answers, with the attributes SHAP uses.

        Returns
        -------
        Attributions
            ``values``, ``base_values``, ``data`` and ``feature_names``; values and base add up to
            the answers exactly.
        """
        from .attributions import attribute

        check_is_fitted(self)
        return attribute(self, X)

    def card(self, X: Any = None, y: Any = None) -> str:
        """Return a model card in Markdown.

        Data and columns, quality, rules, bits, what more bits would buy, and limits.

        Parameters
        ----------
        X, y : samples and targets, optional
            Rows that the committee has not learned from, to say how good it is.
        """
        from .card import model_card

        check_is_fitted(self)
        return model_card(self, X, y)

    def to_sql(self, table: str) -> str:
        """Return a query that gives the committee's answers to the rows of a table.

        Needs linear experts, ``selector="tree"`` and a `fit` on a data frame without dates. The
        query has one row for each row of the table, with p(m|x) of every expert beside the
        prediction: the expected value, or the probability of every class.
        """
        from .sql import to_sql

        check_is_fitted(self)
        return to_sql(self, table)

    def to_onnx(self, path: Any) -> None:
        """Write the committee as an ONNX graph: prediction, p(m|x) and bits of every row.

        See `pinfactory.estimators.onnx_export.to_onnx` for its input and outputs.
        """
        from .onnx_export import to_onnx

        check_is_fitted(self)
        to_onnx(self, path)

    def plot_partition(self, X: Any, y: Any = None, **settings: Any) -> Any:
        """Draw who answers where; see `pinfactory.plotting.PartitionDisplay.from_estimator`."""
        from pinfactory.plotting import PartitionDisplay

        return PartitionDisplay.from_estimator(self, X, y, **settings)

    def _ask(
        self, question: Callable[..., PyTree[Array]], X: Any, *more: Any, size: int | None = None
    ) -> Any:
        """Put a question to the hierarchy about samples, which may be read in chunks."""
        check_is_fitted(self)
        if (chunks := as_chunks(X)) is None:
            return self._ask_numbers(question, self._numbers(X), *more, size=size)
        answers = [
            self._ask_numbers(question, self._numbers(part), *more, size=size)
            for part in known_columns(self, chunks)
        ]
        return jax.tree.map(lambda *parts: np.concatenate(parts), *answers)

    def _ask_numbers(
        self,
        question: Callable[..., PyTree[Array]],
        X: Float[np.ndarray, "n d"],
        *more: Any,
        size: int | None = None,
    ) -> Any:
        """Put a question to the hierarchy, block by block of some size, and join the answers."""
        blocks, size = [], size or self._block
        with library_settings():
            for start in range(0, len(X), size):
                block = self._standardised(X[start : start + size])
                x = jax.device_put(padded(block, min(padded_length(len(block)), size)))
                blocks.append((len(block), question(self._hierarchy(), x, *more)))
        lengths, answers = zip(*blocks, strict=True)

        def join(*parts: Array) -> np.ndarray:
            kept = [np.asarray(part)[:n] for part, n in zip(parts, lengths, strict=True)]
            return np.concatenate(kept).astype(float)

        return jax.tree.map(join, *answers)

    def _hierarchy(self) -> Hierarchy:
        """Return the hierarchy that answers questions."""
        return self.state_.model

    def _search(self) -> TreeSearch | None:
        """Return the search for the best expert in the selector's tree, which is made once."""
        check_is_fitted(self)
        model = self.state_.model  # the same object in every call
        if not isinstance(model.selector, SoftTree) or len(model.sizes) > 1:
            return None
        if self not in _searches or _searches[self][0] is not model:
            _searches[self] = (model, TreeSearch.of(model.selector, model.available))
        return _searches[self][1]

    def _routed(self, X: Any, routing: str) -> Any:
        """Return one answer for each sample from whom `routing` asks."""
        options = ("mixture", "best", "sampled")
        if check.choice("routing", routing, options) == "mixture":
            return self._ask(self._mixture, X)
        if routing == "best":
            search = self._search()
            # A search has no scores of all experts, which take memory.
            return self._ask(ask_best, X, search, size=None if search is None else BLOCK)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        keys = map(partial(jax.random.fold_in, jax.random.key(seed)), itertools.count())
        return self._ask(lambda h, x: ask_sampled(h, x, next(keys)), X)

    def _ask_expert(self, X: Any, expert: int) -> Any:
        check_is_fitted(self)
        if check.integer("expert", expert, 0) >= self.n_experts_:
            raise ValueError(f"`expert` must be below {self.n_experts_}, but got {expert}.")
        return self._ask(ask_expert, X, jnp.asarray(expert))


@compiled
def decide(hierarchy: Hierarchy, x: Inputs) -> Decision:
    """Return p(m|x) and the answers of all experts, as if there were one level of selection.

    Experts that are not asked (`top_k`) have probability zero.
    """
    if hierarchy.top_k is None:
        return jax.vmap(hierarchy)(x).flat
    everyone = replace(hierarchy, top_k=None)
    return Decision((jax.vmap(hierarchy.select_asked)(x),), jax.vmap(everyone)(x).answers)


@compiled_with_kernels
def ask_best(hierarchy: Hierarchy, x: Inputs, search: TreeSearch | None) -> PyTree[Array]:
    """Return the answer of the most responsible expert; the others are not asked."""
    best = hierarchy.best(x) if search is None else search.best(x)

    def one(m: Array, x: Array) -> PyTree[Array]:
        return hierarchy.last_expert(m)(x)

    return jax.vmap(one)(best, x)


@compiled
def ask_sampled(hierarchy: Hierarchy, x: Inputs, key: Key[Array, ""]) -> PyTree[Array]:
    """Return the answer of an expert drawn from p(m|x) for each input."""

    def one(x: Array, key: Array) -> PyTree[Array]:
        return hierarchy.last_expert(hierarchy.select_asked(x).sample(key))(x)

    return jax.vmap(one)(x, jax.random.split(key, len(x)))


@compiled
def ask_expert(hierarchy: Hierarchy, x: Inputs, m: Int[Array, ""]) -> PyTree[Array]:
    """Return the answers of expert m."""
    return jax.vmap(hierarchy.last_expert(m))(x)
