"""Checks of what a user asked for, each with an error that says what would be right."""

import math
import numbers
from collections.abc import Sequence
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state

from pinfactory.core.constraints import Budget, Fixed, Resource, Scheduled
from pinfactory.persistence import check_scale, dotted_name
from pinfactory.tables import Encoding, Rules

Beta = float | Scheduled
Option = TypeVar("Option")


# Compiled programs count in 32 bits.
MOST_COUNTED = 2**31 - 1
# Gradient steps of an adaptation: a file may hold any number, and a prediction would not end.
MOST_STEPS = 10_000
# Means of shares in single precision add up to one by so much.
ROUNDING = 1e-3


def integer(name: str, value: Any, lowest: int, most: int = MOST_COUNTED) -> int:
    """Return a whole number of at least `lowest` and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < lowest:
        raise ValueError(f"`{name}` must be an integer of at least {lowest}, but got {value!r}.")
    if int(value) > most:
        raise ValueError(f"`{name}` must be an integer of at most {most}, but got {value!r}.")
    return int(value)


def number(
    name: str, value: Any, low: float, high: float = math.inf, *, open_low: bool = False
) -> float:
    """Return a finite number within the bounds."""
    right = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not right or not low <= value <= high or (open_low and value == low) or math.isinf(value):
        bounds = f"above {low}" if open_low else f"of at least {low}"
        limit = "" if math.isinf(high) else f" and at most {high}"
        raise ValueError(f"`{name}` must be a number {bounds}{limit}, but got {value!r}.")
    return float(value)


def choice(name: str, value: Option, options: Sequence[Option]) -> Option:
    """Return one of the options."""
    if value not in options:
        named = ", ".join(map(repr, options))
        raise ValueError(f"`{name}` must be one of {named}, but got {value!r}.")
    return value


def shares(name: str, value: Any) -> None:
    """Check that these are shares, which add up to one but for rounding."""
    parts = np.asarray(value, float)
    if not ((parts >= 0.0).all() and abs(parts.sum() - 1.0) < ROUNDING):
        raise ValueError(f"`{name}` must be shares that add up to 1, but got {value!r}.")


def sizes(name: str, value: Any) -> tuple[int, ...]:
    """Return the widths of hidden layers."""
    if isinstance(value, numbers.Integral):
        value = (value,)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"`{name}` must be a tuple of layer widths, but got {value!r}.")
    return tuple(integer(name, width, 1) for width in value)


def seed(random_state: Any) -> int:
    """Return the seed that a `random_state` of scikit-learn stands for."""
    return int(check_random_state(random_state).randint(2**31 - 1))


def resource(name: str, beta: Any, bits: Any, most_bits: float = math.inf) -> Resource:
    """Return where β comes from: a budget if `bits` is given, else `beta`."""
    if bits is not None:
        limit = number(f"{name}_bits", bits, 0.0)
        if limit > most_bits + 1e-9:
            raise ValueError(
                f"`{name}_bits` must be at most log2(n_experts) = {most_bits:.3g}, more than "
                f"which a selector cannot process, but got {bits!r}."
            )
        return Budget(jnp.asarray(limit))
    if isinstance(beta, Scheduled):
        for part in ("start", "end", "steps"):
            number(f"beta_{name}.{part}", float(getattr(beta, part)), 0.0, open_low=True)
        return beta
    return Fixed(jnp.asarray(number(f"beta_{name}", beta, 0.0, open_low=True)))


def stored(value: Any) -> Any:
    """Return a setting, or a plain attribute, as values for a file."""
    if isinstance(value, StandardScaler):
        return {"scaler": (value.mean_, value.scale_)}
    if isinstance(value, Encoding):
        return {"encoding": value.to_plain()}
    if isinstance(value, Rules):
        return {"rules": value.to_plain()}
    if isinstance(value, Scheduled):
        numbers = (value.start.item(), value.end.item(), value.steps.item())
        return {"scheduled": (*numbers, value.shape)}
    if callable(value):
        # A file holds no code: the function has to be given to `load` again.
        return {"function": dotted_name(value)}
    return value


def restored(value: Any) -> Any:
    """Return a setting or attribute from the values in a file."""
    if isinstance(value, dict) and "scheduled" in value:
        return Scheduled(*value["scheduled"])
    if isinstance(value, dict) and "encoding" in value:
        return Encoding.from_plain(value["encoding"])
    if isinstance(value, dict) and "rules" in value:
        return Rules.from_plain(value["rules"])
    if isinstance(value, dict) and "scaler" in value:
        scaler = StandardScaler()
        scaler.mean_, scaler.scale_ = value["scaler"]
        check_scale(scaler.mean_, scaler.scale_)
        return scaler
    return value
