"""What classifier and regressor share until they are fitted: from samples to a hierarchy."""

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float
from sklearn.base import is_classifier
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_array, check_X_y, validate_data

from pinfactory import settings as check
from pinfactory.base import warm_identity
from pinfactory.callbacks import fingerprint
from pinfactory.core.compiling import compiled
from pinfactory.core.constraints import Resource
from pinfactory.core.growth import has_movable_outputs, order_by_share
from pinfactory.core.hierarchy import Hierarchy, pick
from pinfactory.core.information import Estimate, Information, Meter, estimate_information
from pinfactory.core.learning import Data, State
from pinfactory.tables import FAR, Rules, as_frame

from .budgets import meet_budgets, warn_of_bits, warn_of_price
from .candidates import search
from .chunked import refuse_weights, with_targets
from .drawn import Counts
from .fitting import Problem, Replica, Trainer
from .parameters import CommitteeSettings
from .stream import Samples
from .table import Distances, FrameInputs, Reach, Rows, Table, indicator_scales, is_array, repeated

# Rows that are asked at once, and those of many experts: bounds the memory of predictions.
BLOCK, SMALLEST_BLOCK, MANY_EXPERTS = 8192, 128, 64
# Enough rows to know the information of Gaussian answers to a few hundredths of a bit.
MONTE_CARLO_ROWS = 512
# Farther than this from the mean, in deviations, is as good as infinite: squares stay finite.
FARTHEST = 1e9
# So many rows tell the information of a stage to a percent.
BUDGET_ROWS = 16_384

Inputs = Float[Array, "n d"]
# Takes what was learned from a table, and the range of its rows; returns what was learned from
# further rows, and what reads all of them.
ReadBlocks = Callable[[], Iterable[Data]]
Further = Callable[[State, Table, Reach], tuple[State, ReadBlocks]]


class TableLearner(FrameInputs, CommitteeSettings):
    """A selector and simple experts, trained on the rows of a table.

    A subclass says in `_problem` what its targets need.
    """

    state_: State[Hierarchy]
    scaler_: StandardScaler
    n_experts_: int
    n_iter_: int
    gain_: tuple[float, float] | None
    rules_: Rules
    target_name_: str
    _attributes: tuple[str, ...] = (
        *("n_features_in_", "feature_names_in_", "n_experts_", "n_iter_", "scaler_", "gain_"),
        *("encoding_", "rules_", "target_name_"),
    )
    _optional_attributes: tuple[str, ...] = (
        *("feature_names_in_", "encoding_", "rules_", "target_name_"),
    )

    def _set_beyond(self, samples: Samples, distances: Distances) -> None:
        """Find how answers go on where no rows are, if they can; classes go on as they are."""

    def _set_noise(self, read: ReadBlocks, n_rows: int) -> None:
        """Set the noise of answers, if they have one, by the rows that are read."""

    @abstractmethod
    def _samples(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool, counts: Counts | None = None
    ) -> Samples:
        """Return checked samples with class codes, or a column for each target.

        Where they are some of many, `counts` tells of the classes of all.
        """

    @abstractmethod
    def _problem(self) -> Problem:
        """Return what the targets need; what was learned of their scale or classes is known."""

    # ------------------------------------------------------------------- from data to a table

    def _checked(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool, numeric: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return checked samples, targets (of several outputs if `numeric`) and weights."""
        kinds = {"dtype": np.float64, "multi_output": numeric, "y_numeric": numeric}
        if not is_array(X) and as_frame(X) is not None and (reset or hasattr(self, "encoding_")):
            if reset:
                self.target_name_ = str(getattr(y, "name", None) or "")
            if not reset and (names := self.encoding_.unused(X)):
                warnings.warn(
                    "not used, because hardly any of the first rows differed in it: "
                    f"{', '.join(names)}. Begin with rows that are mixed.",
                    stacklevel=3,
                )
            X, y = check_X_y(self._encoded(X, reset=reset), y, estimator=self, **kinds)
        else:
            self._refuse_array(reset=reset)
            X, y = validate_data(self, X, y, reset=reset, **kinds)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise ValueError("`sample_weight` must hold a weight above zero, but got only zeros.")
        return X, y, weight

    def _distances(self, samples: Samples) -> Distances:
        """Return the rows, and how far outside each of them is."""
        X, rows = samples.X, repeated(*samples, classes=is_classifier(self))
        if self.standardise:
            return Distances.find(X, rows)
        return Distances(rows, Reach.endless(X.shape[1]), np.zeros(len(rows.position)))

    def _numbers(self, X: Any) -> Float[np.ndarray, "n d"]:
        """Return samples as the numbers that the committee sees."""
        if hasattr(self, "encoding_") and as_frame(X) is not None:
            return check_array(self._encoded(X, reset=False), estimator=self)
        self._refuse_array(reset=False)
        return validate_data(self, X, reset=False, dtype=np.float64)

    def _fit_scaler(self, X: np.ndarray, rows: Rows) -> None:
        """Take mean and deviation of the inputs, which standardise them from now on.

        Columns of two values are indicators, whose scale does not depend on how rare they are.
        """
        self.scaler_ = unscaled(X.shape[1])
        if not self.standardise:
            return
        self.scaler_ = StandardScaler()
        for part in rows.parts(65_536):
            self.scaler_.partial_fit(X[part.position], sample_weight=part.weight)
        scale = indicator_scales(X, rows)
        self.scaler_.scale_[scale > 0.0] = scale[scale > 0.0]

    def _standardised(self, X: np.ndarray) -> np.ndarray:
        distance = (X - self.scaler_.mean_) / self.scaler_.scale_
        return np.clip(distance, -FARTHEST, FARTHEST).astype(np.float32)

    def _table(
        self, X: np.ndarray, targets: np.ndarray, rows: Rows, unit: float | None = None
    ) -> Table:
        """Return standardised rows, their weights in a unit, or of weight one in the mean.

        `targets` are in experts' units.
        """
        x, start = np.empty((len(rows.position), X.shape[1]), np.float32), 0
        # Part by part, so that the table is never held a second time in double precision.
        for part in rows.parts():
            x[start : start + len(part.position)] = self._standardised(X[part.position])
            start += len(part.position)
        weight = (rows.weight / (unit or rows.weight.mean())).astype(np.float32)
        return Table(x, targets[rows.position], weight)

    # ------------------------------------------------------------------------------- training

    def _fit(self, X: Any, y: Any, sample_weight: Any, **training: Any) -> None:
        """Train on samples in memory, or on those that are read in chunks."""
        with self._learning():
            warm = self._is_warm()
            if not is_array(X) and (chunks := with_targets(X, y)) is not None:
                from .large import fit_chunks

                refuse_weights(sample_weight)
                fit_chunks(self, chunks, y, warm=warm, **training)
                return
            samples = self._samples(X, y, sample_weight, reset=not warm)
            self._fit_samples(samples, warm=warm, **training)

    def _is_warm(self) -> bool:
        return self.warm_start and hasattr(self, "state_")

    def _fit_samples(
        self, samples: Samples, *, warm: bool, further: Further | None = None, **training: Any
    ) -> None:
        """Train on samples in memory, and then on others if there are."""
        distances = self._distances(samples)
        if not warm:
            self._set_scales(samples, distances.learned)
        self._set_beyond(samples, distances)
        table = self._table(samples.X, self._targets(samples.y), distances.learned)
        state = self._trained(table, **training)
        read: ReadBlocks = partial(table.blocks, self._block)
        if further is not None:
            state, read = further(state, table, distances.middle)
        self.state_ = self._ordered(self._within_budget(state, table), table)
        self._measure(read(), table)
        self._warn_of_bits()
        self._set_noise(read, len(table.x))
        if hasattr(self, "encoding_"):
            self._set_rules(samples, distances.middle)

    def _set_rules(self, samples: Samples, middle: Reach) -> None:
        """Remember what can be told of a data frame, which is not there any more when asked."""
        from .rules import find_rules

        counted = samples.take(samples.weight > 0.0)
        learned = counted.take(middle.distance(counted.X, counted.rows) <= FAR)
        self.rules_ = find_rules(self, *learned)

    def _trained(self, table: Table, **training: Any) -> State:
        """Train candidates side by side, and return the best."""
        random = check_random_state(self.random_state)
        n_init = check.integer("n_init", self.n_init, 1)
        warm = self.state_ if self._is_warm() else None
        identity = {"data": fingerprint(*table)} if training["checkpoint"] else None
        if identity and warm is not None:
            identity |= warm_identity(warm.model)
        trainer, resources = self._trainer(identity=identity, **training), self._resources()
        self._set_n_experts(warm)
        self.__dict__.pop("_stream", None)
        self._warn_of_price(resources[0])
        seeds = random.randint(2**31 - 1, size=n_init)
        replicas = [Replica(int(seed), self.n_experts_, *resources) for seed in seeds]
        if warm is None:
            fit, self.gain_ = search(trainer, table, replicas, n_init)
        else:
            fit, self.gain_ = trainer.fit_part(table, replicas[:1], warm), None
        state = pick(fit.states, int(np.argmax(fit.scores)))
        self.n_iter_, self.history_ = int(fit.trained.run.step), fit.trained.history
        return state

    def _warn_of_price(self, selector: Resource) -> None:
        if self.n_experts_ > 1 and self._is_likely() and self._objective() == "free_energy":
            warn_of_price(selector)

    def _warn_of_bits(self) -> None:
        if self.selector_bits is not None:
            warn_of_bits("selector", self.selector_bits, self.information_.selector)
        if self.expert_bits is not None:
            warn_of_bits("expert", self.expert_bits, self.information_.experts)

    def _trainer(self, **training: Any) -> Trainer:
        """Return what trains replicas with these settings."""
        return Trainer(self, self._problem(), partial(self._train, **training))

    def _within_budget(self, state: State, table: Table) -> State:
        """Return the state in which budgets are met."""
        if not state.constraints.has_budget:
            return state
        # Rows come in the order of a hash: the first of them are a random sample.
        data = table.take(np.arange(min(len(table.x), BUDGET_ROWS))).padded()
        return met(state, data, self._problem().judge.utility).state

    def _ordered(self, state: State, table: Table) -> State:
        """Put the busiest expert first, where the selector's outputs can be moved."""
        if not has_movable_outputs(state.model.selector):
            return state
        share = np.zeros(self.n_experts_)
        for block in table.blocks(self._block):
            # On the host: JAX would compile a product for every shape.
            share += np.asarray(block.weight) @ np.asarray(select(state.model, block.x))
        # Of several levels, the first is put in order.
        return order_by_share(state, share.reshape(len(state.model.available), -1).sum(axis=1))

    @abstractmethod
    def _set_scales(self, samples: Samples, rows: Rows) -> None:
        """Take the units in which inputs and targets are learned from some of the samples."""

    @abstractmethod
    def _targets(self, y: np.ndarray) -> np.ndarray:
        """Return targets as experts learn them."""

    @property
    def _block(self) -> int:
        """Rows that are asked at once, the fewer the more experts there are."""
        return max(BLOCK * MANY_EXPERTS // max(MANY_EXPERTS, self.n_experts_), SMALLEST_BLOCK)

    def _set_n_experts(self, known: State[Hierarchy] | None) -> None:
        sizes = self._sizes()
        if known is not None and sizes != known.model.sizes:
            fitted = known.model.sizes if len(known.model.sizes) > 1 else self.n_experts_
            raise ValueError(
                f"`n_experts` must stay {fitted} to go on with a fitted committee, but got "
                f"{self.n_experts}."
            )
        self.n_experts_ = math.prod(sizes)

    def _measure(self, blocks: Iterable[Data], table: Table) -> None:
        """Measure the information processed on the training data, of which a table has some."""
        hierarchy, meter = self.state_.model, None
        for block in blocks:
            meter = feed_meter(meter, hierarchy, block.x, block.weight)
        assert meter is not None
        measured = read_meter(meter)
        if meter.overall is None:
            overall = estimate_overall(hierarchy, table.sample(MONTE_CARLO_ROWS)).value
            measured = eqx.tree_at(lambda i: i.overall, measured, overall)
        self.information_ = measured.on_host()

    # ---------------------------------------------------------------------------------- files

    def _untrained(self) -> State:
        if len(self.scaler_.mean_) != self._n_inputs:
            raise ValueError("the scale of the inputs must have one number for each feature")
        replica = Replica(0, self.n_experts_, *self._resources())
        return self._trainer().start([replica])[0]


def unscaled(n_columns: int) -> StandardScaler:
    """Return a scaler that leaves numbers as they are."""
    scaler = StandardScaler()
    scaler.mean_, scaler.scale_ = np.zeros(n_columns), np.ones(n_columns)
    return scaler


met = compiled(meet_budgets)


@compiled
def select(hierarchy: Hierarchy, x: Inputs) -> Float[Array, "n m"]:
    """Return p(m|x) of all experts."""
    return jax.vmap(hierarchy.select_last)(x).probs


@compiled
def select_asked(hierarchy: Hierarchy, x: Inputs) -> Float[Array, "n m"]:
    """Return the share of every expert in the answers: p(m|x) of those that are asked."""
    return jax.vmap(hierarchy.select_asked)(x).probs


@compiled
def feed_meter(
    meter: Meter | None, hierarchy: Hierarchy, x: Inputs, weight: Float[Array, " n"]
) -> Meter:
    """Measure the decisions for further inputs, or begin to."""
    decision = jax.vmap(hierarchy)(x)
    return (Meter.start(decision) if meter is None else meter).update(decision, weight)


@compiled
def read_meter(meter: Meter) -> Information:
    """Return what has been measured, with the experts of all levels side by side."""
    found = meter.report()
    flat = (found.per_expert.ravel(), found.responsibility.ravel())
    return eqx.tree_at(lambda i: (i.per_expert, i.responsibility), found, flat)


@compiled
def estimate_overall(hierarchy: Hierarchy, x: Inputs) -> Estimate:
    """Estimate I(X;Y) for answers whose mixture has no closed-form entropy."""
    return estimate_information(jax.random.key(0), jax.vmap(hierarchy)(x).flat)[1]
