"""What classifier and regressor share: from a table to a trained hierarchy, and questions to it."""

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_is_fitted,
    check_X_y,
    validate_data,
)

from pinfactory import networks
from pinfactory import settings as check
from pinfactory.base import Learnable
from pinfactory.callbacks import fingerprint
from pinfactory.core.compiling import compiled
from pinfactory.core.constraints import Budget, Fixed, Resource, Scheduled
from pinfactory.core.growth import has_movable_outputs, order_by_share
from pinfactory.core.hierarchy import Decision, Hierarchy, pick
from pinfactory.core.information import Estimate, Information, Meter, estimate_information
from pinfactory.core.learning import State
from pinfactory.core.padding import padded, padded_length
from pinfactory.environment import library_settings
from pinfactory.tables import INDICATOR_SCALE, Encoding, Rules, as_frame

from .budgets import has_budget, meet_budgets, warn_of_bits, warn_of_price
from .candidates import search
from .fitting import Problem, Replica, Trainer
from .table import Rows, Table, distinct, without_outliers

# Rows that are asked at once: bounds the memory of predictions on large tables.
BLOCK = 8192
# Enough rows to know the information of Gaussian answers to a few hundredths of a bit.
MONTE_CARLO_ROWS = 512
# With fewer effective experts than this a division of labour has collapsed.
COLLAPSED = 1.05
# Farther than this from the mean, in deviations, is as good as infinite: squares stay finite.
FARTHEST = 1e9
# So many rows tell the information of a stage to a percent.
BUDGET_ROWS = 16_384
# Utilities that are log-likelihoods.
LIKELIHOODS = ("likelihood", "student_t")

Inputs = Float[Array, "n d"]


class Committee(Learnable):
    """A selector and simple experts, trained on the rows of a table.

    A subclass says in `_problem` what its targets need, and in `_mixture` how the answers of all
    experts become one.
    """

    state_: State[Hierarchy]
    scaler_: StandardScaler
    n_experts_: int
    n_features_in_: int
    n_iter_: int
    gain_: tuple[float, float] | None
    encoding_: Encoding
    rules_: Rules
    target_name_: str
    _attributes: tuple[str, ...] = (
        *("n_features_in_", "feature_names_in_", "n_experts_", "n_iter_", "scaler_", "gain_"),
        *("encoding_", "rules_", "target_name_"),
    )
    _optional_attributes: tuple[str, ...] = (
        *("feature_names_in_", "encoding_", "rules_", "target_name_"),
    )
    _mixture: Callable[[Hierarchy, Inputs], PyTree[Array]]

    @abstractmethod
    def _measured_targets(self, y: np.ndarray) -> np.ndarray:
        """Return class codes, or a column for each target."""

    @abstractmethod
    def _problem(self) -> Problem:
        """Return what the targets need; what was learned of their scale or classes is known."""

    @property
    def verdict_(self) -> str:
        """Say whether one expert is enough, several share the work, or training collapsed."""
        check_is_fitted(self)
        n_available = int(np.sum(np.asarray(self.state_.model.available)))
        in_use = self.effective_experts_
        if self.n_experts_ == 1:
            return "There is one expert."
        if n_available == 1:
            return "One expert is enough: on held-out samples more of them gained nothing."
        if in_use < COLLAPSED:
            return (
                f"Training collapsed: one of {n_available} experts answers nearly everything. Its "
                "price may be too high (raise beta_selector), or the start too poor "
                "(start='auto', more n_init)."
            )
        told = f"{in_use:.1f} of {self.n_experts_} experts are in use"
        if self.gain_ is None:
            return f"{told}."
        mean, error = self.gain_
        return f"{told}: on held-out samples they gain {mean:.3f} ± {error:.3f} over one."

    # ---------------------------------------------------------------------------- questions

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
        if X is not None and y is not None:
            numeric = not hasattr(self, "classes_")
            X, y, _ = self._checked(X, y, None, reset=False, numeric=numeric)
            return find_rules(self, X, self._measured_targets(y))
        if not hasattr(self, "rules_"):
            raise ValueError(
                "`rules` needs samples and targets, rules(X, y), unless `fit` was given a data "
                "frame."
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
        from .row import attribute

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

    def _ask(self, question: Callable[..., PyTree[Array]], X: Any, *more: Any) -> Any:
        """Put a question to the hierarchy about samples."""
        check_is_fitted(self)
        return self._ask_numbers(question, self._numbers(X), *more)

    def _ask_numbers(
        self, question: Callable[..., PyTree[Array]], X: Float[np.ndarray, "n d"], *more: Any
    ) -> Any:
        """Put a question to the hierarchy, block by block, and join the answers."""
        blocks = []
        with library_settings():
            for start in range(0, len(X), BLOCK):
                block = self._standardised(X[start : start + BLOCK])
                x = jnp.asarray(padded(block, min(padded_length(len(block)), BLOCK)))
                blocks.append((len(block), question(self._hierarchy(), x, *more)))
        lengths, answers = zip(*blocks, strict=True)

        def join(*parts: Array) -> np.ndarray:
            kept = [np.asarray(part)[:n] for part, n in zip(parts, lengths, strict=True)]
            return np.concatenate(kept).astype(float)

        return jax.tree.map(join, *answers)

    def _hierarchy(self) -> Hierarchy:
        """Return the hierarchy that answers questions."""
        return self.state_.model

    def _routed(self, X: Any, routing: str) -> Any:
        """Return one answer for each sample from whom `routing` asks."""
        options = ("mixture", "best", "sampled")
        if check.choice("routing", routing, options) == "mixture":
            return self._ask(self._mixture, X)
        if routing == "best":
            return self._ask(ask_best, X)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        keys = map(partial(jax.random.fold_in, jax.random.key(seed)), itertools.count())
        return self._ask(lambda h, x: ask_sampled(h, x, next(keys)), X)

    def _ask_expert(self, X: Any, expert: int) -> Any:
        check_is_fitted(self)
        if check.integer("expert", expert, 0) >= self.n_experts_:
            raise ValueError(f"`expert` must be below {self.n_experts_}, but got {expert}.")
        return self._ask(ask_expert, X, jnp.asarray(expert))

    # ------------------------------------------------------------------- from data to a table

    def _checked(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool, numeric: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return checked samples, targets (of several outputs if `numeric`) and weights."""
        kinds = {"dtype": np.float64, "multi_output": numeric, "y_numeric": numeric}
        if as_frame(X) is not None and (reset or hasattr(self, "encoding_")):
            if reset:
                self.target_name_ = str(getattr(y, "name", None) or "")
            X, y = check_X_y(self._encoded(X, reset=reset), y, estimator=self, **kinds)
        else:
            self._refuse_array(reset=reset)
            X, y = validate_data(self, X, y, reset=reset, **kinds)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise ValueError("`sample_weight` must hold a weight above zero, but got only zeros.")
        return X, y, weight

    def _rows(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Rows:
        """Return the distinct rows to learn from."""
        rows = distinct(X, y, weight)
        return without_outliers(X, rows) if self.standardise else rows

    def _numbers(self, X: Any) -> Float[np.ndarray, "n d"]:
        """Return samples as the numbers that the committee sees."""
        if hasattr(self, "encoding_") and as_frame(X) is not None:
            return check_array(self._encoded(X, reset=False), estimator=self)
        self._refuse_array(reset=False)
        return validate_data(self, X, reset=False, dtype=np.float64)

    def _encoded(self, frame: Any, *, reset: bool) -> Float[np.ndarray, "n d"]:
        """Return a data frame as numbers; `reset` decides what is done to each column."""
        if reset:
            self.encoding_ = Encoding.learn(frame)
            self.feature_names_in_ = np.asarray(self.encoding_.names, object)
            self.n_features_in_ = len(self.feature_names_in_)
        elif self.encoding_.is_plain:
            # As everywhere in scikit-learn: the same columns in the same order.
            validate_data(self, frame, reset=False, skip_check_array=True)
        return self.encoding_.transform(frame)

    def _refuse_array(self, *, reset: bool) -> None:
        """Forget what was done to the columns of a frame, or refuse samples that have none."""
        if reset:
            for name in ("encoding_", "target_name_"):
                self.__dict__.pop(name, None)
        elif hasattr(self, "encoding_") and not self.encoding_.is_plain:
            raise ValueError(
                f"{type(self).__name__} was fitted on a data frame: `X` must be one with the "
                f"columns {', '.join(self.encoding_.names)}."
            )

    def _set_rules(self, X: Float[np.ndarray, "n d"], y: np.ndarray) -> None:
        """Remember what can be told of a data frame, which is not there any more when asked."""
        from .rules import find_rules

        self.__dict__.pop("rules_", None)
        if hasattr(self, "encoding_"):
            self.rules_ = find_rules(self, X, y)

    @property
    def _n_inputs(self) -> int:
        """Numbers that the networks see of a sample."""
        encoding = getattr(self, "encoding_", None)
        return self.n_features_in_ if encoding is None else len(encoding.features)

    def _fit_scaler(self, X: np.ndarray, rows: Rows) -> None:
        """Take mean and deviation of the inputs, which standardise them from now on."""
        self.scaler_ = StandardScaler()
        for part in rows.parts():
            self.scaler_.partial_fit(X[part.position], sample_weight=part.weight)
        if not self.standardise:
            self.scaler_ = unscaled(X.shape[1])
        elif hasattr(self, "encoding_"):
            self.scaler_.scale_[self.encoding_.indicators] = INDICATOR_SCALE

    def _standardised(self, X: np.ndarray) -> np.ndarray:
        distance = (X - self.scaler_.mean_) / self.scaler_.scale_
        return np.clip(distance, -FARTHEST, FARTHEST).astype(np.float32)

    def _table(self, X: np.ndarray, targets: np.ndarray, rows: Rows) -> Table:
        """Return standardised rows; `targets` are those of all samples, in the experts' units."""
        x, start = np.empty((len(rows.position), X.shape[1]), np.float32), 0
        # Part by part, so that the table is never held a second time in double precision.
        for part in rows.parts():
            x[start : start + len(part.position)] = self._standardised(X[part.position])
            start += len(part.position)
        weight = (rows.weight / rows.weight.mean()).astype(np.float32)
        return Table(x, targets[rows.position], weight)

    # ------------------------------------------------------------------------------- training

    def _network(self, outputs: int, key: Key[Array, ""]) -> networks.Network:
        """Build the network of an expert."""
        inputs = self._n_inputs
        if callable(self.expert):
            return self.expert(inputs, outputs, key=key)
        kind = check.choice("expert", self.expert, ("constant", "linear", "mlp"))
        if kind == "mlp":
            hidden = check.sizes("expert_hidden", self.expert_hidden)
            return networks.residual_mlp(inputs, outputs, hidden, key=key)
        return getattr(networks, kind)(inputs, outputs, key=key)

    def _selector(self, inputs: int, outputs: int, key: Key[Array, ""]) -> networks.Network:
        """Build the selector."""
        if callable(self.selector):
            return self.selector(inputs, outputs, key=key)
        kind = check.choice("selector", self.selector, ("tree", "mlp", "linear"))
        if kind == "tree":
            return networks.SoftTree.random(inputs, outputs, key=key)
        if kind == "linear":
            network = networks.linear(inputs, outputs, key=key)
        else:
            hidden = check.sizes("selector_hidden", self.selector_hidden)
            network = networks.mlp(inputs, outputs, hidden, networks.tanh, key=key)
        return networks.limited(network) if self.standardise else network

    def _objective(self) -> str:
        """Return what is trained: the free energy J, or the likelihood of the mixture."""
        options = ("auto", "free_energy", "likelihood")
        asked = check.choice("objective", self.objective, options)
        if asked != "auto":
            return asked
        # A price that moves, or a budget, is one of J; so is a sampled expectation.
        moves = not all(isinstance(resource, Fixed) for resource in self._resources())
        if moves or not self._is_likely() or self.expectation == "sampled":
            return "free_energy"
        return "likelihood"

    def _is_likely(self) -> bool:
        """Return whether the utility is a log-likelihood."""
        return getattr(self, "utility", "likelihood") in LIKELIHOODS

    def _is_warm(self) -> bool:
        return self.warm_start and hasattr(self, "state_")

    def _fit_table(self, table: Table, **training: Any) -> None:
        """Train candidates side by side, keep the best, and measure its information."""
        random = check_random_state(self.random_state)
        n_init = check.integer("n_init", self.n_init, 1)
        warm = self.state_ if self._is_warm() else None
        identity = {"data": fingerprint(*table)} if training["checkpoint"] else None
        train = partial(self._train, identity=identity, **training)
        trainer = Trainer(self, self._problem(), train)
        resources = self._resources()
        if self.n_experts > 1 and self._is_likely() and self._objective() == "free_energy":
            warn_of_price(resources[0])
        self._set_n_experts(warm is not None)
        seeds = random.randint(2**31 - 1, size=n_init)
        replicas = [Replica(int(seed), self.n_experts, *resources) for seed in seeds]
        if warm is None:
            fit, self.gain_ = search(trainer, table, replicas, n_init)
        else:
            fit, self.gain_ = trainer.fit_part(table, replicas[:1], warm), None
        state = pick(fit.states, int(np.argmax(fit.scores)))
        self.n_iter_, self.history_ = int(fit.trained.run.step), fit.trained.history
        self.state_ = self._ordered(self._within_budget(state, table), table)
        self._measure(table)
        warn_of_bits("selector", self.selector_bits, self.information_.selector)
        warn_of_bits("expert", self.expert_bits, self.information_.experts)

    def _resources(self) -> tuple[Resource, Resource]:
        """Return where β₁ and β₂ come from; a budget's begins at what it would be without one."""

        def begun(name: str, resource: Resource) -> Resource:
            beta = getattr(self, f"beta_{name}")
            if not isinstance(resource, Budget) or isinstance(beta, Scheduled):
                return resource
            beta = check.number(f"beta_{name}", beta, 0.0, open_low=True)
            return Budget(resource.bits, jnp.asarray(math.log(beta)))

        selector, expert = super()._resources()
        return begun("selector", selector), begun("expert", expert)

    def _within_budget(self, state: State, table: Table) -> State:
        """Return the state in which budgets are met."""
        if not has_budget(state):
            return state
        # Rows come in the order of a hash: the first of them are a random sample.
        data = table.take(np.arange(min(len(table.x), BUDGET_ROWS))).padded()
        return met(state, data, self._problem().utility).state

    def _ordered(self, state: State, table: Table) -> State:
        """Put the busiest expert first, where the selector's outputs can be moved."""
        if not has_movable_outputs(state.model.selector):
            return state
        share = np.zeros(self.n_experts_)
        for block in table.blocks(BLOCK):
            share += np.asarray(block.weight @ select(state.model, block.x), float)
        return order_by_share(state, share)

    def _fit_batch(self, table: Table) -> None:
        """Go on learning, seeing each row once."""
        known = getattr(self, "state_", None)
        self._set_n_experts(known is not None)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        replica = Replica(seed, self.n_experts, *self._resources())
        trainer = Trainer(self, self._problem(), self._train)
        self.gain_ = None
        trained = trainer.fit_batch(table, replica, known, 0 if known is None else self.n_iter_)
        self.state_, self.n_iter_ = pick(trained.run.state, 0), int(trained.run.step)
        self._measure(table)

    def _set_n_experts(self, going_on: bool) -> None:
        if going_on and self.n_experts != self.n_experts_:
            raise ValueError(
                f"`n_experts` must stay {self.n_experts_} to go on with a fitted committee, but "
                f"got {self.n_experts}."
            )
        self.n_experts_ = self.n_experts

    def _measure(self, table: Table) -> None:
        """Measure the information processed on the training data."""
        hierarchy, meter = self.state_.model, None
        for block in table.blocks(BLOCK):
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
        return Trainer(self, self._problem(), self._train).start([replica])[0]


def unscaled(n_columns: int) -> StandardScaler:
    """Return a scaler that leaves numbers as they are."""
    scaler = StandardScaler()
    scaler.mean_, scaler.scale_ = np.zeros(n_columns), np.ones(n_columns)
    return scaler


met = compiled(meet_budgets)


@compiled
def select(hierarchy: Hierarchy, x: Inputs) -> Float[Array, "n m"]:
    """Return p(m|x)."""
    return jax.vmap(hierarchy.select)(x).probs


@compiled
def decide(hierarchy: Hierarchy, x: Inputs) -> Decision:
    """Return p(m|x) and the answers of all experts."""
    return jax.vmap(hierarchy)(x)


@compiled
def ask_best(hierarchy: Hierarchy, x: Inputs) -> PyTree[Array]:
    """Return the answer of the most responsible expert; the others are not asked."""

    def one(x: Array) -> PyTree[Array]:
        chosen = jnp.argmax(hierarchy.select(x).log_probs)
        return hierarchy.expert(chosen)(x)

    return jax.vmap(one)(x)


@compiled
def ask_sampled(hierarchy: Hierarchy, x: Inputs, key: Key[Array, ""]) -> PyTree[Array]:
    """Return the answer of an expert drawn from p(m|x) for each input."""

    def one(x: Array, key: Array) -> PyTree[Array]:
        return hierarchy.expert(hierarchy.select(x).sample(key))(x)

    return jax.vmap(one)(x, jax.random.split(key, len(x)))


@compiled
def ask_expert(hierarchy: Hierarchy, x: Inputs, m: Int[Array, ""]) -> PyTree[Array]:
    """Return the answers of expert m."""
    return jax.vmap(hierarchy.expert(m))(x)


@compiled
def feed_meter(
    meter: Meter | None, hierarchy: Hierarchy, x: Inputs, weight: Float[Array, " n"]
) -> Meter:
    """Measure the decisions for further inputs, or begin to."""
    decision = jax.vmap(hierarchy)(x)
    return (Meter.start(decision) if meter is None else meter).update(decision, weight)


@compiled
def read_meter(meter: Meter) -> Information:
    """Return what has been measured."""
    return meter.report()


@compiled
def estimate_overall(hierarchy: Hierarchy, x: Inputs) -> Estimate:
    """Estimate I(X;Y) for answers whose mixture has no closed-form entropy."""
    return estimate_information(jax.random.key(0), jax.vmap(hierarchy)(x))[1]
