"""Errors of environments."""

from typing import Any, NoReturn


class EnvironmentFault(RuntimeError):
    """An environment raised an error or returned invalid values.

    The agent keeps what it had learned until then.
    """


def raise_fault(what: str, error: Exception | None = None, action: Any = None) -> NoReturn:
    """Raise an `EnvironmentFault` that says what an environment did."""
    acted = "" if action is None else f" for actions of shape {action.shape}, type {action.dtype}"
    raise EnvironmentFault(
        f"The environment {what}{acted}. What the agent learned until then is kept: it can act, be "
        "saved, and go on learning in a sound environment."
    ) from error
