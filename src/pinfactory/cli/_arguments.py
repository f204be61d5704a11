"""Settings in the words of a command line: NAME=VALUE."""

import json
from collections.abc import Callable
from typing import Any


def named(option: str, text: str, parse: Callable[[str], Any]) -> tuple[str, Any]:
    """Return name and value of a setting such as `beta_selector=5`."""
    name, equals, written = text.partition("=")
    if not name.isidentifier() or not equals or not written:
        raise ValueError(f"{option} must be like beta_selector=1,5,25, but got {text!r}")
    return name, parse(written)


def values(text: str) -> list[Any]:
    """Return the values of `1,5,25`, `linear,mlp`, `[8],[8,8]`, or `0:10` (from 0 to 9)."""
    first, colon, last = text.partition(":")
    if colon and first.isdigit() and last.isdigit():
        return list(range(int(first), int(last)))
    try:
        return json.loads(f"[{text}]")  # lists have commas of their own
    except ValueError:
        return [value(part) for part in text.split(",")]


def value(text: str) -> Any:
    """Return a number, true, false, null or a list as JSON writes them; else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
