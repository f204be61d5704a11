"""What all learners share: one way to train, callbacks, checkpoints, interrupts and files."""

import copy
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
from jaxtyping import PyTree
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from pinfactory import settings as check
from pinfactory.callbacks import Checkpoint, ProgressBar, as_callbacks, fingerprint
from pinfactory.core.compiling import library_settings
from pinfactory.core.constraints import Priors, Resource, is_met
from pinfactory.core.hierarchy import Decision
from pinfactory.core.information import Information
from pinfactory.core.training import Callback, Run, Steps, Trained, TrainingInterrupted, train
from pinfactory.persistence import MismatchError, described, load, save_model, set_attributes

Documented = TypeVar("Documented")


class Learnable(BaseEstimator):
    """A learner with settings that are stored as they were given, and a state that is learned.

    A class names in `_attributes` what else it has learned that is plain (numbers, arrays,
    labels), and builds in `_untrained` the state that its settings and these attributes describe.
    """

    _attributes: tuple[str, ...] = ()
    _optional_attributes: tuple[str, ...] = ("feature_names_in_",)
    # Values of settings that files of earlier versions call otherwise, by setting and old name.
    _renamed_values: Mapping[str, Mapping[str, str]] = {}
    # Settings that a training which goes on from a checkpoint may have otherwise.
    _may_differ: tuple[str, ...] = ("max_iter", "verbose", "warm_start")

    @abstractmethod
    def _untrained(self) -> PyTree:
        """Return a state of the right shapes that has learned nothing."""

    def _check_state(self) -> None:
        """Raise a ValueError if the state, read from a file, cannot be the result of training."""

    def _check_fitted(self) -> None:
        """Raise `NotFittedError` before `fit`; agents, which have none, can act from the start."""
        if hasattr(self, "fit"):
            check_is_fitted(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy with arrays of its own, which JAX makes."""
        twin = memo[id(self)] = type(self).__new__(type(self))
        with library_settings():
            twin.__dict__.update(copy.deepcopy(vars(self), memo))
        return twin

    @property
    def effective_experts_(self) -> float:
        """2^H(M), the effective number of experts in use."""
        self._check_fitted()
        return self.information_.effective_experts

    def plot_information(self, *, ax: Any = None) -> Any:
        """Draw the bits processed; see `pinfactory.plotting.InformationDisplay`."""
        from pinfactory.plotting import InformationDisplay

        return InformationDisplay.from_estimator(self, ax=ax)

    # ------------------------------------------------------------------- settings to constraints

    def _resources(self) -> tuple[Resource, Resource]:
        """Return where β₁ and β₂ come from."""
        most_bits = math.log2(check.integer("n_experts", self.n_experts, 1))
        return (
            check.resource("selector", self.beta_selector, self.selector_bits, most_bits),
            check.resource("expert", self.beta_expert, self.expert_bits),
        )

    def _priors(self, like: Decision) -> Priors:
        """Return running priors for decisions shaped as `like`."""
        return Priors.running(
            like,
            check.number("momentum_selector", self.momentum_selector, 0.0, 1.0),
            check.number("momentum_expert", self.momentum_expert, 0.0, 1.0),
        )

    # ------------------------------------------------------------------------------- training

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """Change nothing of a fitted learner unless what happens inside succeeds.

        After Ctrl-C what was learned until then is kept, and the interrupt goes on to the caller.
        """
        with self._keeping(), all_or_nothing(self), library_settings():
            yield

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """Let `_watched` return what was learned before Ctrl-C, and raise the interrupt after it.

        Outside of this a training has no learner to keep what it learned, as in a curve.
        """
        self._keeps = True
        try:
            yield
        finally:
            del self._keeps
        stop = self.__dict__.pop("_stop", None)
        if stop is not None:
            warnings.warn(
                f"{type(self).__name__}: {stop}; what was learned until then is kept.", stacklevel=6
            )
            raise stop

    def _warn_of_missed_budgets(self) -> None:
        """Warn of a budget in bits that was not met, and by how much."""
        for stage in ("selector", "expert"):
            asked = getattr(self, f"{stage}_bits")
            if asked is None:
                continue
            information = self.information_
            bits = information.selector if stage == "selector" else information.experts
            if not is_met(asked, bits):
                why = " the stage has no use for more, or" if bits < asked else ""
                warnings.warn(
                    f"{type(self).__name__}: `{stage}_bits` is {asked:.3g}, but {bits:.3g} bits "
                    f"were reached:{why} learning was too short.",
                    stacklevel=4,
                )

    def _train(
        self,
        learner: Steps,
        run: Run,
        data: Any,
        *,
        callbacks: Any = None,
        checkpoint: str | Path | None = None,
        identity: dict[str, Any] | None = None,
        phase: str = "",
        every: int = 1,
        verbose: bool | None = None,
        **options: Any,
    ) -> Trained:
        """Take gradient steps, watched as in `_watched`; options are those of `train`."""

        def training(run: Run, watching: list[Callback]) -> Trained:
            return train(learner, run, data, callbacks=watching, **options)

        return self._watched(
            training,
            run,
            callbacks,
            checkpoint=checkpoint,
            identity=identity,
            phase=phase,
            steps=options["steps"],
            every=every,
            verbose=verbose,
        )

    def _watched(
        self,
        training: Callable[[Run, list[Callback]], Trained],
        run: Run,
        callbacks: Any = None,
        *,
        checkpoint: str | Path | None = None,
        identity: dict[str, Any] | None = None,
        phase: str = "",
        steps: int | None = None,
        every: int = 1,
        verbose: bool | None = None,
    ) -> Trained:
        """Train with a progress bar if asked for, the user's callbacks, and checkpoints.

        A training that a checkpoint holds goes on where it was; `identity` says of what data. One
        that has taken more than `steps` is another. A `phase` before the last has a checkpoint of
        its own, whose name ends in that of the phase.
        It is written every `every` chunks. `verbose` is that of the learner if it is missing.
        """
        watching = as_callbacks(callbacks)
        if self.verbose if verbose is None else verbose:
            watching.insert(0, ProgressBar(type(self).__name__))
        if checkpoint is not None:
            checkpoint = Path(f"{checkpoint}.{phase}" if phase else checkpoint)
            identity = self._identity() | (identity or {})
            watching.append(Checkpoint(checkpoint, every, identity=identity))
        try:
            if checkpoint is not None and checkpoint.exists():
                resumed = self._as_asked(Checkpoint.resume(checkpoint, run, identity), run)
                if steps is not None and int(resumed.step) > steps:
                    raise MismatchError(
                        f"{checkpoint} must be a checkpoint of this run: it has taken "
                        f"{int(resumed.step)} steps of training, but this run has {steps}; remove "
                        "the file or name another"
                    )
                return training(resumed, watching)
            return training(run, watching)
        except TrainingInterrupted as stop:
            if not hasattr(self, "_keeps") or int(stop.trained.run.step) == int(run.step):
                raise
            self._stop = stop
            return stop.trained

    def _as_asked(self, found: Run, asked: Run) -> Run:
        """Return the run of a checkpoint with the schedules of the run that is asked for."""
        return found

    def _identity(self) -> dict[str, Any]:
        """Return what has to be the same for a training to go on from a checkpoint."""
        settings = self.get_params(deep=False).items()
        kept = {name: described(value) for name, value in settings if name not in self._may_differ}
        return {"learner": type(self).__name__} | kept

    # ---------------------------------------------------------------------------------- files

    def save(self, path: Any) -> None:
        """Write the fitted learner to one file; `pinfactory.load` reads it back.

        The file holds no code: a function that was given as a setting, such as a factory of
        experts, has to be given to `load` again.
        """
        self._check_fitted()
        save_model(self, path)

    @classmethod
    def load(cls, path: Any, **functions: Any) -> Any:
        """Read a learner of this class from a file, as `pinfactory.load` does."""
        model = load(path, **functions)
        if not isinstance(model, cls):
            raise ValueError(f"{path} must hold a {cls.__name__}, but got {type(model).__name__}.")
        return model

    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        meta = {
            "params": {name: check.stored(v) for name, v in self.get_params(deep=False).items()},
            "attributes": {
                name: check.stored(getattr(self, name))
                for name in self._attributes
                if hasattr(self, name)
            },
        }
        if hasattr(self, "information_"):
            meta["information"] = asdict(self.information_)
        return meta, self.state_

    @classmethod
    def _from_file(cls, meta: dict[str, Any], load: Callable[[PyTree], PyTree]) -> "Learnable":
        params = {name: check.restored(value) for name, value in meta["params"].items()}
        for name, new_names in cls._renamed_values.items():
            if isinstance(params.get(name), str):
                params[name] = new_names.get(params[name], params[name])
        model = cls(**params)
        attributes = {name: check.restored(v) for name, v in meta["attributes"].items()}
        set_attributes(model, attributes, cls._attributes, cls._optional_attributes)
        if "information" in meta:
            model.information_ = Information(**meta["information"])
            check.shares("responsibility", model.information_.responsibility)
        with library_settings():
            model.state_ = load(model._untrained())
        model._check_state()
        return model


@contextmanager
def all_or_nothing(changed: Any) -> Iterator[None]:
    """Give an object back the attributes it had if what happens inside fails."""
    before = dict(vars(changed))
    try:
        yield
    except BaseException:
        changed.__dict__.clear()
        changed.__dict__.update(before)
        raise


def warm_identity(model: PyTree) -> dict[str, str]:
    """Return what a checkpoint has to know of a training that goes on from a learned model."""
    return {"warm_start": fingerprint(*jax.tree.leaves(eqx.filter(model, eqx.is_array)))}


def describe(**parts: str) -> Callable[[Documented], Documented]:
    """Put text that several docstrings share into the places ``{name}`` of one."""

    def decorate(documented: Documented) -> Documented:
        for name, text in parts.items():
            documented.__doc__ = (documented.__doc__ or "").replace("{" + name + "}", text)
        return documented

    return decorate
