"""Types and shapes of all the library's functions are checked while tests run.

jaxtyping decorates functions inside functions, too, whenever they are defined: a fit defines some
sixty. beartype would write the same checks again every time, which took a third of a second fit.
They are written when a function is first called: a process calls few of all that it imports.
"""

from collections.abc import Callable
from typing import Any

from beartype import beartype

_made: dict[tuple[Any, ...], Callable[..., Any]] = {}


def checked(signature: Callable[..., Any]) -> Callable[..., Any]:
    """Return `beartype(signature)`, made once for each signature that is called.

    `signature` does nothing: jaxtyping makes it up to have the arguments of a function checked,
    and what that returns.
    """
    made: Callable[..., Any] | None = None

    def check(*arguments: Any, **named: Any) -> Any:
        nonlocal made
        if made is None:
            made = _written(signature)
        return made(*arguments, **named)

    return check


def _written(signature: Callable[..., Any]) -> Callable[..., Any]:
    code = signature.__code__
    hints = signature.__annotations__
    key = (
        signature.__module__,
        signature.__qualname__,
        code.co_varnames,
        code.co_flags,
        code.co_posonlyargcount,
        code.co_argcount,
        len(signature.__defaults__ or ()),
        *(signature.__kwdefaults__ or ()),
        *map(repr, hints.items()),
    )
    if key not in _made:
        _made[key] = beartype(signature)
    return _made[key]
