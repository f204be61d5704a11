"""Models that know how to be stored, and which class each kind of file belongs to.

The table is filled by the classes themselves. A file only names a kind; it can never name a
class or a module to import.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, TypeVar, runtime_checkable

from jaxtyping import PyTree

from ._atomic import FilePath
from ._container import read
from ._errors import DamagedFileError, ModelFileError, NotStorableError, UnknownKindError
from ._tree import fill, save_tree


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


_classes: dict[str, type[Any]] = {}
# Where our own kinds register themselves, so that a file can be loaded before its module is.
_MODULES = {
    "SpecialistClassifier": "pinfactory.estimators",
    "SpecialistRegressor": "pinfactory.estimators",
    "SpecialistMixture": "pinfactory.estimators",
    "SpecialistAgent": "pinfactory.rl._agent",
    "MetaSpecialistRegressor": "pinfactory.meta",
    "MetaSpecialistClassifier": "pinfactory.meta",
    "MetaSpecialistAgent": "pinfactory.rl.meta",
    "ImageSpecialists": "pinfactory.vision",
    "MAML": "pinfactory.baselines._gradient",
    "ANIL": "pinfactory.baselines._gradient",
    "MatchingNetworks": "pinfactory.baselines._metric",
    "PrototypicalNetworks": "pinfactory.baselines._metric",
    "PreTraining": "pinfactory.baselines._pretraining",
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
        If the class itself (not a parent) is not registered, or a part of the model cannot be
        stored, such as a parameter that is a function.
    """
    for kind, cls in _classes.items():
        if cls is type(model):
            meta, tree = model._to_file()
            save_tree(path, tree, kind=kind, meta=meta)
            return
    raise NotStorableError(
        f"model must be of a registered class to be saved, but got {type(model).__qualname__}; "
        "decorate the class with pinfactory.persistence.register"
    )


def load(path: FilePath) -> Any:
    """Load the model in a file.

    The class of a model of your own must be registered, which importing its module does.

    Nothing in the file is executed, and no class is looked up by a name that the file gives
    except among the registered ones.

    Raises
    ------
    ModelFileError
        `UnknownKindError` if no class of this kind is registered, another subclass if the file
        is not sound or does not describe such a model.
    """
    manifest, arrays = read(path)
    if manifest.kind in _MODULES:
        import_module(_MODULES[manifest.kind])
    if manifest.kind not in _classes:
        raise UnknownKindError(
            f"{path} holds a {manifest.kind!r}, but load must be given one of {sorted(_classes)}; "
            "import the module that defines this model first, or use load_tree"
        )
    try:
        return _classes[manifest.kind]._from_file(
            manifest.meta, lambda like: fill(path, manifest, arrays, like)
        )
    except ModelFileError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(
            f"{path} must describe a {manifest.kind!r}, but building it fails: {error!r}"
        ) from error
