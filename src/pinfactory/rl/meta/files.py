"""Families of tasks as plain values for a file."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from pinfactory.persistence import NotStorableError
from pinfactory.rl import envs

from .families import Either, Entry, ParameterFamily, TaskFamily, Uniform

_DISTRIBUTIONS = {"uniform": Uniform, "either": Either}


def store_family(family: TaskFamily) -> dict[str, Any]:
    """Return a family as plain values."""
    name = type(family.env).__name__
    if not isinstance(family, ParameterFamily) or envs.ENVIRONMENTS.get(name) is not type(
        family.env
    ):
        raise NotStorableError(
            "the family of an agent must be a ParameterFamily of one of "
            f"{sorted(envs.ENVIRONMENTS)} to be saved, but got {type(family).__name__} of {name}; "
            "save its `state_` with pinfactory.persistence.save_tree"
        )
    return {
        "env": name,
        "settings": {f.name: getattr(family.env, f.name) for f in dataclasses.fields(family.env)},
        "parameters": {name: _store(entry) for name, entry in family.parameters.items()},
    }


def restore_family(stored: dict[str, Any]) -> ParameterFamily:
    """Return a family from plain values."""
    return ParameterFamily(
        envs.ENVIRONMENTS[stored["env"]](**stored["settings"]),
        {name: _restore(entry) for name, entry in stored["parameters"].items()},
    )


def _store(entry: Entry | Sequence[Entry]) -> Any:
    if isinstance(entry, Sequence):
        return [_store(e) for e in entry]
    if isinstance(entry, Uniform | Either):
        return {type(entry).__name__.lower(): list(dataclasses.astuple(entry))}
    return float(entry)


def _restore(stored: Any) -> Any:
    if isinstance(stored, list):
        return tuple(_restore(e) for e in stored)
    if isinstance(stored, dict):
        ((kind, numbers),) = stored.items()
        return _DISTRIBUTIONS[kind](*numbers)
    return stored
