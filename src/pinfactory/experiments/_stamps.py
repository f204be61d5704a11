"""What a stored piece depends on: the functions it is made of, and the arguments bound to them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache, partial
from typing import Any

from pinfactory.sweep.fingerprint import dependencies

from .experiment import Experiment, Unused

# What computes, in the module of an experiment: the rest judges, draws and describes.
COMPUTES = ("Settings", "pieces")


def stamps(experiment: Experiment, settings: Any) -> dict[str, Mapping[str, Any]]:
    """Return plain data for every piece that tells whether a stored one still holds.

    Of a `partial` of functions and classes at the top of modules these are its arguments, the code
    that these functions use and the versions of libraries: another setting, which is not among the
    arguments, changes nothing. What else a piece may be, such as a lambda, might use anything, and
    depends on all settings and on all that the experiment computes with.
    """
    code_of = cache(dependencies)  # pieces share most of their code, and its files do not change
    found: dict[str, Mapping[str, Any]] = {}
    for name, piece in experiment.pieces(settings).items():
        parts = _Parts()
        try:
            called = parts.describe(piece)
        except TypeError:
            module: str = experiment.__name__  # type: ignore[attr-defined]
            called, parts = asdict(settings), _Parts({module: set(COMPUTES)})
        code = [
            code_of(module, tuple(sorted(parts.names[module]))) for module in sorted(parts.names)
        ]
        found[name] = {
            "called": called,
            "versions": {name: v for part in code for name, v in part.libraries.items()},
            "source": [part.digest for part in code],
        }
    return found


@dataclass
class _Parts:
    """The functions and classes in a piece, as their names by module."""

    names: dict[str, set[str]] = field(default_factory=dict)

    def describe(self, value: Any) -> Any:
        """Return a value as plain data; raise TypeError where its code or content is not known."""
        if isinstance(value, partial):
            keywords = self.describe(value.keywords)
            return [self.describe(value.func), self.describe(value.args), keywords]
        if is_dataclass(value) and not isinstance(value, type):
            content = {part.name: getattr(value, part.name) for part in fields(value)}
            return [self.describe(type(value)), self.describe(content)]
        if isinstance(value, Mapping):
            return [[self.describe(key), self.describe(item)] for key, item in value.items()]
        if isinstance(value, list | tuple):
            return [self.describe(item) for item in value]
        if callable(value):
            return self._home(value)
        if isinstance(value, Unused):
            return "unused"
        if value is None or isinstance(value, str | int | float) or hasattr(value, "tolist"):
            return value
        raise TypeError(f"{value!r} is not plain data")

    def _home(self, thing: Any) -> str:
        module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
        if not isinstance(module, str) or not name.isidentifier():
            raise TypeError(f"{thing!r} has no name at the top of a module")
        self.names.setdefault(module, set()).add(name)
        return f"{module}.{name}"
