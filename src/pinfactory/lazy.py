"""Names of a package that are imported when they are asked for."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attach(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that imports some of its names late.

    Parameters
    ----------
    package
        Its `__name__`.
    modules
        The names that each of its modules defines, separated by spaces; modules are relative to
        the package, or absolute if they begin with its first name.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name], package), name)

    def names() -> list[str]:
        known = vars(sys.modules[package])
        return sorted({*known, *known["__all__"]})

    return find, names
