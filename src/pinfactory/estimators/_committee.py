"""What classifier and regressor share: the questions one can ask a fitted committee."""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from pinfactory import settings as check
from pinfactory.core.families import Family
from pinfactory.core.hierarchy import Hierarchy
from pinfactory.core.padding import padded, padded_length

from . import _questions as questions
from ._files import Files
from ._fitting import Fitting
from ._information import CommitteeInformation
from ._table import Table

# Rows that are asked at once: bounds the memory of predictions on large tables.
BLOCK = 8192
# Enough rows to know the information of Gaussian answers to a few hundredths of a bit.
MONTE_CARLO_ROWS = 512


class Committee(Files, Fitting):
    """A selector and simple experts, trained on the rows of a table."""

    @abstractmethod
    def _mixture(self, hierarchy: Hierarchy, x: Float[Array, "n d"]) -> Family:
        """Return one answer for each input that sums up those of all experts."""

    def responsibilities(self, X: Any) -> np.ndarray:
        """Return p(m|x) with one row for each sample and one column for each expert."""
        return self._ask(questions.select, X)

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
        from ._explain import explain

        return explain(self, feature_names)

    def plot_partition(self, X: Any, y: Any = None, **settings: Any) -> Any:
        """Draw who answers where; see `pinfactory.plotting.PartitionDisplay.from_estimator`."""
        from pinfactory.plotting import PartitionDisplay

        return PartitionDisplay.from_estimator(self, X, y, **settings)

    def plot_information(self, *, ax: Any = None) -> Any:
        """Draw the bits processed; see `pinfactory.plotting.InformationDisplay`."""
        from pinfactory.plotting import InformationDisplay

        return InformationDisplay.from_estimator(self, ax=ax)

    def _ask(self, question: Callable[..., PyTree[Array]], X: Any, *more: Any) -> Any:
        """Put a question to the hierarchy, block by block, and join the answers."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        blocks = []
        for start in range(0, len(X), BLOCK):
            block = self._scaled(X[start : start + BLOCK])
            x = jnp.asarray(padded(block, min(padded_length(len(block)), BLOCK)))
            answer = question(self._answering, x, *more)
            blocks.append((len(block), answer))
        lengths, answers = zip(*blocks, strict=True)

        def join(*parts: Array) -> np.ndarray:
            kept = [np.asarray(part)[:n] for part, n in zip(parts, lengths, strict=True)]
            return np.concatenate(kept).astype(float)

        return jax.tree.map(join, *answers)

    @property
    def _answering(self) -> Hierarchy:
        """The hierarchy that answers questions."""
        return self.state_.hierarchy

    def _routed(self, X: Any, routing: str) -> Any:
        """Return one answer for each sample from whom `routing` asks."""
        options = ("mixture", "best", "sampled")
        if check.choice("routing", routing, options) == "mixture":
            return self._ask(self._mixture, X)
        if routing == "best":
            return self._ask(questions.ask_best, X)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        keys = map(partial(jax.random.fold_in, jax.random.key(seed)), itertools.count())
        return self._ask(lambda h, x: questions.ask_sampled(h, x, next(keys)), X)

    def _ask_expert(self, X: Any, expert: int) -> Any:
        check_is_fitted(self)
        if check.integer("expert", expert, 0) >= self.n_experts_:
            raise ValueError(f"`expert` must be below {self.n_experts_}, but got {expert}.")
        return self._ask(questions.ask_expert, X, jnp.asarray(expert))

    def _measure(self, table: Table) -> None:
        """Measure the information processed on the training data."""
        hierarchy, meter = self.state_.hierarchy, None
        for start in range(0, len(table.x), BLOCK):
            block = table.take(np.arange(start, min(start + BLOCK, len(table.x)))).padded()
            meter = questions.feed_meter(meter, hierarchy, block.x, block.weight)
        assert meter is not None
        overall = None
        if meter.overall is None:
            # As many of each row as its weight asks for.
            n_rows = padded_length(min(len(table.x), MONTE_CARLO_ROWS))
            share = np.cumsum(table.weight, dtype=float) / np.sum(table.weight, dtype=float)
            chosen = np.searchsorted(share, (np.arange(n_rows) + 0.5) / n_rows)
            rows = jnp.asarray(table.x[np.minimum(chosen, len(share) - 1)])
            overall = questions.estimate_overall(hierarchy, rows)
        self.information_ = CommitteeInformation.of(questions.read_meter(meter), overall)
