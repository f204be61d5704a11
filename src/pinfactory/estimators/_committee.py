"""What classifier and regressor share: from a table to a trained hierarchy and back."""

import dataclasses
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from pinfactory import networks
from pinfactory.callbacks import ProgressBar
from pinfactory.core.batches import Epochs
from pinfactory.core.families import Family
from pinfactory.core.hierarchy import Expert, FamilyExpert, Hierarchy, assemble, pick, stack
from pinfactory.core.learning import Data, Learner, LearnerState, Utility
from pinfactory.core.priors import Priors
from pinfactory.core.resources import Budget, Resource, Scheduled
from pinfactory.core.training import Callback, Run, train
from pinfactory.persistence import save_model

from . import _questions as questions
from . import _settings as check
from ._information import CommitteeInformation
from ._rows import Rows, distinct, padded, padded_length

# Steps between two checks on the validation part; fixed, because it is part of a compiled shape.
CHUNK = 200
# … and without a validation part, long enough that the return to Python costs nothing.
UNCHECKED_CHUNK = 1000
# Rows that are asked at once: bounds the memory of predictions on large tables.
BLOCK = 8192
# Farther than this from the mean, in deviations, is as good as infinite: squares stay finite.
FARTHEST = 1e9
# Enough rows to know the information of Gaussian answers to a few hundredths of a bit.
MONTE_CARLO_ROWS = 512


class Replica(NamedTuple):
    """How one of several trainings that run side by side differs from the others."""

    seed: int
    n_experts: int
    selector: Resource
    expert: Resource


class Table(NamedTuple):
    """Distinct rows, standardised, with targets the experts can learn from."""

    x: Float[np.ndarray, "n d"]
    y: np.ndarray
    weight: Float[np.ndarray, " n"]

    def take(self, index: np.ndarray) -> "Table":
        """Return some of the rows."""
        return Table(self.x[index], self.y[index], self.weight[index])

    def padded(self) -> Data:
        """Return the rows as arrays of a length that other tables share."""
        length = padded_length(len(self.x))
        return Data(*(jax.device_put(padded(column, length)) for column in self))


class Committee(BaseEstimator):
    """A selector and simple experts, trained on the rows of a table."""

    state_: LearnerState
    n_experts_: int
    n_iter_: int

    @abstractmethod
    def _utility(self) -> Utility:
        """Return the utility the experts are trained for."""

    @abstractmethod
    def _score_function(self) -> Callable[[Hierarchy, Data], Float[Array, " n"]]:
        """Return how good the committee's answer is for each row of a validation set."""

    @abstractmethod
    def _targets(self, y: np.ndarray) -> np.ndarray:
        """Return what the experts are to answer, in their own units."""

    @abstractmethod
    def _mixture(self, hierarchy: Hierarchy, x: Float[Array, "n d"]) -> Family:
        """Return one answer for each input that sums up those of all experts."""

    @abstractmethod
    def _head(self) -> Callable[[Array], Family]:
        """Return how the outputs of an expert's network become a posterior."""

    @property
    @abstractmethod
    def _n_outputs(self) -> int:
        """Return how many outputs an expert's network has."""

    # ------------------------------------------------------------- questions to a fitted committee

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

    def save(self, path: Any) -> None:
        """Write the fitted committee to one file; `pinfactory.load` reads it back."""
        check_is_fitted(self)
        save_model(self, path)

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

    def _scaled(self, X: np.ndarray) -> np.ndarray:
        distance = (X - self.scaler_.mean_) / self.scaler_.scale_
        return np.clip(distance, -FARTHEST, FARTHEST).astype(np.float32)

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

    # -------------------------------------------------------------------------------- training

    def _checked(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return checked samples, targets and weights."""
        X, y = validate_data(
            self,
            X,
            y,
            reset=reset,
            dtype=np.float64,
            multi_output=self._numeric,
            y_numeric=self._numeric,
        )
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise ValueError("`sample_weight` must hold a weight above zero, but got only zeros.")
        return X, y, weight

    def _fit_rows(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
        """Train restarts side by side, keep the best, and measure its information."""
        random = check_random_state(self.random_state)
        n_init = check.integer("n_init", self.n_init, 1)
        warm = self.state_ if self._is_warm() else None
        rows = distinct(X, y, weight)
        if warm is None:
            self._set_scales(X, y, rows)
        table = self._table(X, y, rows)
        selector, expert = self._resources()
        self._keep_n_experts(warm is not None)
        replicas = [
            Replica(int(seed), self.n_experts, selector, expert)
            for seed in random.randint(2**31 - 1, size=n_init if warm is None else 1)
        ]
        states, scores = self._train(table, replicas, warm=warm)
        self.state_ = pick(states, int(np.argmax(scores)))
        self._measure(table)

    def _is_warm(self) -> bool:
        return self.warm_start and hasattr(self, "state_")

    def _keep_n_experts(self, going_on: bool) -> None:
        if going_on and self.n_experts != self.n_experts_:
            raise ValueError(
                f"`n_experts` must stay {self.n_experts_} to go on with a fitted committee, but "
                f"got {self.n_experts}."
            )
        self.n_experts_ = self.n_experts

    def _learn_on(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
        """Go on learning, seeing each sample once."""
        selector, expert = self._resources()
        rows = Rows(np.arange(len(X)), weight)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        wanted = Replica(seed, self.n_experts, selector, expert)
        learner, old = Learner(self._utility()), getattr(self, "state_", None)
        self._keep_n_experts(old is not None)
        if old is None:
            self._set_scales(X, y, rows)
        table, begun = self._table(X, y, rows), 0 if old is None else self.n_iter_
        batch_size = check.integer("batch_size", self.batch_size, 1)
        epochs = Epochs(len(X), batch_size)
        state = (
            self._start(learner, wanted, [wanted], table.x[0])
            if old is None
            else self._continued(old, wanted)
        )
        run = Run.start(jnp.stack([jax.random.key(wanted.seed)]), stack([state]))
        run = eqx.tree_at(lambda r: r.step, run, jnp.asarray(begun))
        trained = train(
            learner,
            run,
            table.padded(),
            # The first epoch of these samples, whatever was seen before.
            batches=lambda seeds, start, n_steps: epochs(seeds, start - begun, n_steps),
            steps=begun - (-len(X) // batch_size),
            chunk=CHUNK,
        )
        self.state_ = pick(trained.run.state, 0)
        self.n_iter_ = int(trained.run.step)
        self._measure(table)

    def _set_scales(self, X: np.ndarray, y: np.ndarray, rows: Rows) -> None:
        """Take mean and deviation of the inputs, which standardise them from now on."""
        self.scaler_ = StandardScaler()
        for part in rows.parts():
            self.scaler_.partial_fit(X[part.position], sample_weight=part.weight)

    def _table(self, X: np.ndarray, y: np.ndarray, rows: Rows) -> Table:
        # Part by part, so that the table is never held a second time in double precision.
        x = np.concatenate([self._scaled(X[part.position]) for part in rows.parts()])
        weight = (rows.weight / rows.weight.mean()).astype(np.float32)
        return Table(x, self._targets(y[rows.position]), weight)

    def _train(
        self, table: Table, replicas: Sequence[Replica], *, warm: LearnerState | None = None
    ) -> tuple[LearnerState, np.ndarray]:
        """Return the trained states of all replicas and how good each is."""
        fitted, validation = self._split(table, replicas[0].seed)
        keys = jnp.stack([jax.random.key(r.seed) for r in replicas])
        learner = Learner(self._utility())
        states = [
            self._start(learner, r, replicas, table.x[0])
            if warm is None
            else self._continued(warm, r)
            for r in replicas
        ]
        run = Run.start(keys, stack(states), keep_best=validation is not None)
        evaluate = None
        if validation is not None:
            held_out, n_rows = validation.padded(), jnp.asarray(len(validation.x))
            score_rows = self._score_function()

            def evaluate(state: LearnerState) -> Float[Array, " replicas"]:
                return _mean_score(score_rows, state.hierarchy, held_out, n_rows)

            if warm is not None and run.best is not None:
                # What was learned before is only given up for something better.
                known = run.best.update(evaluate(run.state), run.state)
                run = eqx.tree_at(lambda r: r.best, run, known)

        steps = check.integer("max_iter", self.max_iter, 1)
        batch_size = check.integer("batch_size", self.batch_size, 1)
        patience = check.integer("n_iter_no_change", self.n_iter_no_change, 1)
        callbacks: list[Callback] = [ProgressBar(type(self).__name__)] if self.verbose else []
        trained = train(
            learner,
            run,
            fitted.padded(),
            batches=Epochs(len(fitted.x), batch_size),
            steps=steps,
            chunk=CHUNK if validation is not None else UNCHECKED_CHUNK,
            evaluate=evaluate,
            patience=patience if validation is not None else None,
            callbacks=callbacks,
        )
        self.n_iter_ = int(trained.run.step)
        self.history_ = trained.history
        if trained.run.best is not None:
            return trained.run.best.state, np.asarray(trained.run.best.score)
        if not trained.history:
            return trained.run.state, np.zeros(len(replicas))
        return trained.run.state, trained.history[-1].info.objective

    def _split(self, table: Table, seed: int) -> tuple[Table, Table | None]:
        """Set rows aside for early stopping, if there are enough to spare."""
        stop = check.choice("early_stopping", self.early_stopping, (True, False, "auto"))
        share = check.number(
            "validation_fraction", self.validation_fraction, 0.0, 0.9, open_low=True
        )
        if not (len(table.x) >= 100 if stop == "auto" else stop and len(table.x) > 1):
            return table, None
        order = self._shuffled(table, np.random.default_rng(seed))
        n_held_out = min(max(1, round(share * len(order))), len(order) - 1)
        return table.take(order[n_held_out:]), table.take(order[:n_held_out])

    def _shuffled(self, table: Table, random: np.random.Generator) -> np.ndarray:
        return random.permutation(len(table.x))

    def _start(
        self, learner: Learner, wanted: Replica, replicas: Sequence[Replica], x: np.ndarray
    ) -> LearnerState:
        """Return an untrained state; all replicas have the shape of the largest."""
        most = max(r.n_experts for r in replicas)
        hierarchy = self._build(jax.random.key(wanted.seed), most, len(x))
        hierarchy = eqx.tree_at(
            lambda h: h.available, hierarchy, jnp.arange(most) < wanted.n_experts
        )
        like = blank(eqx.filter_eval_shape(hierarchy, jnp.asarray(x)))
        priors = (
            Priors.uniform(like)
            if check.choice("prior", self.prior, ("running", "uniform")) == "uniform"
            else Priors.running(
                like,
                check.number("momentum_selector", self.momentum_selector, 0.0, 1.0),
                check.number("momentum_expert", self.momentum_expert, 0.0, 1.0),
            )
        )
        learning_rate, weight_decay = self._rates()
        return learner.init(
            hierarchy,
            priors,
            (wanted.selector, wanted.expert),
            learning_rate=learning_rate,
            weight_decay=weight_decay,
        )

    def _continued(self, state: LearnerState, wanted: Replica) -> LearnerState:
        """Return what was learned before, with the settings of now."""
        resources = map(_resumed, state.resources, (wanted.selector, wanted.expert))
        return eqx.tree_at(
            lambda s: (s.resources, s.learning_rate, s.weight_decay),
            state,
            (tuple(resources), *map(jnp.asarray, self._rates())),
        )

    def _rates(self) -> tuple[float, float]:
        """Return learning rate and weight decay."""
        return (
            check.number("learning_rate", self.learning_rate, 0.0, open_low=True),
            check.number("weight_decay", self.weight_decay, 0.0),
        )

    def _build(self, key: Array, n_experts: int, n_features: int) -> Hierarchy:
        hidden = check.sizes("selector_hidden", self.selector_hidden)

        def selector(key: Array) -> Callable[..., Array]:
            return networks.mlp(n_features, n_experts, hidden, networks.tanh, key=key)

        return assemble(key, selector, lambda key: self._expert(n_features, key), n_experts)

    def _expert(self, n_features: int, key: Array) -> Expert:
        return FamilyExpert(self._network(n_features, self._n_outputs, key), self._head())

    def _network(self, inputs: int, outputs: int, key: Array) -> Callable[..., Array]:
        if callable(self.expert):
            return self.expert(inputs, outputs, key=key)
        if check.choice("expert", self.expert, ("linear", "mlp")) == "linear":
            return networks.linear(inputs, outputs, key=key)
        hidden = check.sizes("expert_hidden", self.expert_hidden)
        return networks.mlp(inputs, outputs, hidden, networks.relu, key=key)

    def _resources(self) -> tuple[Resource, Resource]:
        most_bits = math.log2(check.integer("n_experts", self.n_experts, 1))
        return (
            check.resource("selector", self.beta_selector, self.selector_bits, most_bits),
            check.resource("expert", self.beta_expert, self.expert_bits),
        )

    def _measure(self, table: Table) -> None:
        """Measure the information processed on the training data."""
        hierarchy, meter = self.state_.hierarchy, None
        for start in range(0, len(table.x), BLOCK):
            block = table.take(np.arange(start, min(start + BLOCK, len(table.x)))).padded()
            meter = meter or questions.start_meter(hierarchy, block.x)
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

    # --------------------------------------------------------------------------------- files

    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        plain = {name: getattr(self, name) for name in self._plain if hasattr(self, name)}
        params = self.get_params(deep=False)
        for name in ("beta_selector", "beta_expert"):
            params[name] = check.stored(params[name])
        meta = {"params": params, "plain": plain}
        meta["information"] = dataclasses.asdict(self.information_)
        meta["scalers"] = {
            name: (getattr(self, name).mean_, getattr(self, name).scale_) for name in self._scalers
        }
        return meta, self.state_

    @classmethod
    def _from_file(cls, meta: dict[str, Any], load: Callable[[PyTree], PyTree]) -> "Committee":
        params = meta["params"]
        for name in ("beta_selector", "beta_expert"):
            params[name] = check.restored(params[name])
        model = cls(**params)
        for name, value in meta["plain"].items():
            setattr(model, name, value)
        for name, (mean, scale) in meta["scalers"].items():
            scaler = StandardScaler()
            scaler.mean_, scaler.scale_ = mean, scale
            setattr(model, name, scaler)
        model.information_ = CommitteeInformation(**meta["information"])
        wanted = Replica(0, model.n_experts_, *model._resources())
        x = np.zeros(model.n_features_in_, np.float32)
        model.state_ = load(model._start(Learner(model._utility()), wanted, [wanted], x))
        return model


def blank(shapes: PyTree) -> PyTree:
    """Return zeros of the given shapes."""
    return jax.tree.map(lambda s: jax.device_put(np.zeros(s.shape, s.dtype)), shapes)


def _resumed(old: Resource, new: Resource) -> Resource:
    """Return the resource of `new` at the point that `old` has come to."""
    if isinstance(old, Budget) and isinstance(new, Budget):
        return eqx.tree_at(lambda r: r.bits, old, new.bits)
    if isinstance(old, Scheduled) and isinstance(new, Scheduled):
        return eqx.tree_at(lambda r: r.step, new, old.step)
    return new


@eqx.filter_jit
def _mean_score(
    score_rows: Callable[[Hierarchy, Data], Float[Array, " n"]],
    hierarchies: Hierarchy,
    data: Data,
    n_rows: Int[Array, ""],
) -> Float[Array, " replicas"]:
    """Return the weighted mean score of every replica on the real rows."""
    weight = jnp.where(jnp.arange(len(data.weight)) < n_rows, data.weight, 0.0)

    def one(hierarchy: Hierarchy) -> Float[Array, ""]:
        return jnp.sum(weight * score_rows(hierarchy, data)) / jnp.sum(weight)

    return eqx.filter_vmap(one)(hierarchies)
