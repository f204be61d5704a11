"""Models that know how to be stored, and which class each kind of file belongs to.

The table is filled by the classes themselves. A file only names a kind; it can never name a
class or a module to import.
"""

import warnings
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from pinfactory.networks import limited_size

from ._atomic import FilePath
from ._container import read, write
from ._described import dotted_name
from ._errors import (
    DamagedFileError,
    MissingFunctionError,
    ModelFileError,
    NotStorableError,
    UnknownKindError,
)
from ._tree import fill, stored_arrays


@runtime_checkable
class Storable(Protocol):
    """What `register` asks of a class."""

    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        """Return the constructor's parameters and other plain values, and a tree of arrays."""
        ...

    @classmethod
    def _from_file(cls, meta: dict[str, Any], load: Callable[[PyTree], PyTree]) -> "Storable":
        """Build the model from the plain values; `load` fills a skeleton of the tree."""
        ...


# A model may be built from this many numbers for each in its file, and a few for a small file.
SHARE, SPARE = 4, 2**16
# The largest number in an array of single precision.
LARGEST = 1e18
# What building a model from settings that make no sense may raise. A missing package
# (ImportError), a file system that fails (OSError) and an unknown environment are not the file's.
_BUILDING_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
_classes: dict[str, type[Any]] = {}
# Where our own kinds register themselves, so that a file can be loaded before its module is.
_MODULES = {
    "SpecialistClassifier": "pinfactory.estimators",
    "SpecialistRegressor": "pinfactory.estimators",
    "SpecialistMixture": "pinfactory.estimators",
    "SpecialistAgent": "pinfactory.rl.agent",
    "MetaSpecialistRegressor": "pinfactory.meta",
    "MetaSpecialistClassifier": "pinfactory.meta",
    "MetaSpecialistAgent": "pinfactory.rl.meta",
    "MAML": "pinfactory.baselines.gradient",
    "ANIL": "pinfactory.baselines.gradient",
    "MatchingNetworks": "pinfactory.baselines.metric",
    "PrototypicalNetworks": "pinfactory.baselines.metric",
    "PreTraining": "pinfactory.baselines.pretraining",
    "paper.GradientMixture": "pinfactory.paper.density",
    "paper.MAML": "pinfactory.paper.baselines",
    "paper.MatchingNetworks": "pinfactory.paper.baselines",
    "paper.TaskClassifier": "pinfactory.paper.tasks",
    "paper.TaskRegressor": "pinfactory.paper.tasks",
}
_Model = TypeVar("_Model")


def register(kind: str) -> Callable[[type[_Model]], type[_Model]]:
    """Give a class with the methods of `Storable` its kind, so that `load` knows it.

    Examples
    --------
    >>> import os, tempfile, jax.numpy as jnp
    >>> @register("doc.Line")
    ... class Line:
    ...     def __init__(self, slope):
    ...         self.slope = slope
    ...     def _to_file(self):
    ...         return {}, {"slope": self.slope}
    ...     @classmethod
    ...     def _from_file(cls, meta, load):
    ...         return cls(load({"slope": 0.0})["slope"])
    >>> path = os.path.join(tempfile.mkdtemp(), "line.pin")
    >>> save_model(Line(2.5), path)
    >>> load(path).slope
    2.5
    """

    def add(cls: type[_Model]) -> type[_Model]:
        if _classes.setdefault(kind, cls) is not cls:
            raise ValueError(
                f"each kind must be registered once, but got {kind!r} for "
                f"{cls.__qualname__} after {_classes[kind].__qualname__}"
            )
        return cls

    return add


def save_model(model: Storable, path: FilePath) -> None:
    """Save a model of a registered class, atomically.

    Raises
    ------
    NotStorableError
        If the class itself (not a parent) is not registered, an array holds NaN, or a part of the
        model cannot be stored, such as a parameter that is a function.
    """
    for kind, cls in _classes.items():
        if cls is type(model):
            meta, tree = model._to_file()
            specs, arrays = stored_arrays(tree)
            if strange := _not_finite(cls, arrays):
                raise NotStorableError(
                    f"{strange} must hold finite numbers of moderate size for the model to be "
                    "saved; its training has failed"
                )
            write(path, kind, meta, specs, arrays)
            return
    raise NotStorableError(
        f"model must be of a registered class to be saved, but got {type(model).__qualname__}; "
        "decorate the class with pinfactory.persistence.register"
    )


def load(path: FilePath, **functions: Any) -> Any:
    """Load the model in a file.

    The class of a model of your own must be registered, which importing its module does.

    Nothing in the file is executed, and no class is looked up by a name that the file gives
    except among the registered ones.

    Parameters
    ----------
    path
        The file.
    **functions
        The settings of the model that were functions, such as `expert`: the file knows only what
        they are called.

    Raises
    ------
    ModelFileError
        `UnknownKindError` if no class of this kind is registered, `MissingFunctionError` if a
        function has to be given, another subclass if the file is not sound or does not describe
        such a model.

    Examples
    --------
    >>> import os, tempfile, numpy as np, pinfactory
    >>> from pinfactory import networks
    >>> def small(inputs, outputs, *, key):
    ...     return networks.mlp(inputs, outputs, (4,), networks.tanh, key=key)
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = pinfactory.SpecialistRegressor(2, expert=small, max_iter=50, random_state=0)
    >>> path = os.path.join(tempfile.mkdtemp(), "model.pin")
    >>> model.fit(X, X[:, 0] * X[:, 1]).save(path)
    >>> pinfactory.load(path, expert=small).predict(X).shape
    (100,)
    """
    manifest, arrays = read(path)
    if manifest.kind in _MODULES:
        import_module(_MODULES[manifest.kind])
    if manifest.kind not in _classes:
        raise UnknownKindError(
            f"{path} holds a {manifest.kind!r}, but load must be given one of {sorted(_classes)}; "
            "import the module that defines this model first, or use load_tree"
        )
    if strange := _not_finite(_classes[manifest.kind], arrays):
        raise DamagedFileError(f"{path}: {strange} must hold finite numbers of moderate size")
    meta = _supplied(path, manifest.meta, functions)
    try:
        # Settings that ask for more than the file holds cannot be those of its model.
        most = SPARE + SHARE * sum(array.size for array in arrays.values())
        with limited_size(most), np.errstate(all="ignore"):
            return _classes[manifest.kind]._from_file(
                meta, lambda like: fill(path, manifest, arrays, like)
            )
    except ModelFileError:
        raise
    except _BUILDING_ERRORS as error:
        raise DamagedFileError(
            f"{path} must describe a {manifest.kind!r}, but building it fails: {error!r}"
        ) from error


def _supplied(path: FilePath, meta: Any, functions: Mapping[str, Any]) -> Any:
    """Return plain values in which settings that are functions are those that were given."""
    params = meta.get("params") if isinstance(meta, dict) else None
    params = params if isinstance(params, dict) else {}
    wanted = {
        name: value["function"]
        for name, value in params.items()
        if isinstance(value, dict) and value.keys() == {"function"}
    }
    if extra := sorted(functions.keys() - wanted.keys()):
        raise ValueError(
            f"load must be given functions for {sorted(wanted)}, the settings of {path} that are "
            f"functions, but got {extra}; change other settings with set_params, "
            "and the environment of an agent with set_env"
        )
    if missing := sorted(wanted.keys() - functions.keys()):
        told = ", ".join(f"{name}={wanted[name]}" for name in missing)
        raise MissingFunctionError(
            f"{path} holds a model that was made with {told}, and a file holds no code: import "
            f"what it was made with and call load(path, {missing[0]}=…)"
        )
    for name, function in functions.items():
        if not callable(function):
            raise ValueError(f"`{name}` must be a function, but got {function!r}.")
        if dotted_name(function) != wanted[name]:
            warnings.warn(
                f"{path} was made with {name}={wanted[name]}, but is loaded with "
                f"{dotted_name(function)}; if that is not the same function, answers differ.",
                stacklevel=3,
            )
    return meta | {"params": params | dict(functions)} if functions else meta


def set_attributes(
    model: object,
    values: Any,
    declared: Collection[str],
    optional: Collection[str] = ("feature_names_in_",),
) -> None:
    """Set the attributes that a model is known to have to values from a file.

    Raises
    ------
    DamagedFileError
        If a name is not among those declared, or one of them is missing that is not optional.
    """
    names = set(values) if type(values) is dict else {str(values)}
    if not set(declared) - set(optional) <= names <= set(declared):
        raise DamagedFileError(
            f"the attributes of a {type(model).__name__} must be {sorted(declared)}, "
            f"but the file has {sorted(map(str, names))}"
        )
    for name, value in values.items():
        setattr(model, name, value)


def check_scale(mean: Any, scale: Any) -> None:
    """Check that `mean` and `scale` from a file can standardise features.

    Raises
    ------
    DamagedFileError
        If they are not finite numbers, one for each feature, or a scale is not above zero.
    """
    parts = [np.asarray(part) for part in (mean, scale)]
    if (
        any(part.dtype.kind != "f" or part.ndim != 1 for part in parts)
        or len(parts[0]) != len(parts[1])
        or not np.isfinite(parts).all()
        or not (parts[1] > 0.0).all()
    ):
        raise DamagedFileError(
            f"means and scales must be finite, the scales above zero, but the file has {mean!r} "
            f"and {scale!r}"
        )


def _not_finite(cls: type[Any], arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return the name of an array that a trained model cannot have, if there is one.

    Numbers are finite, and in single precision so small that their squares are finite, too. Arrays
    whose names a class lists as `_may_be_minus_infinity` may hold −∞, such as a log-probability.
    """
    exempt = getattr(cls, "_may_be_minus_infinity", ())
    for name, array in arrays.items():
        if jnp.issubdtype(array.dtype, jnp.floating):
            numbers = array[array != -np.inf] if name in exempt else array
            most = LARGEST if array.dtype != np.float64 else np.inf
            if not (np.isfinite(numbers) & (np.abs(numbers) <= most)).all():
                return name
    return None
