"""What tells whether a stored piece still holds: arguments and code, never what it does not use."""

from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from pinfactory.experiments import _stamps as module
from pinfactory.experiments import discover
from pinfactory.experiments.experiment import Presets, without
from pinfactory.sweep.store import encode


@dataclass(frozen=True)
class Settings(Presets):
    seeds: int = 1
    rates: tuple[float, ...] = (0.5,)


def work(*things, **named): ...


def play(): ...


def stamp(piece, settings=Settings()):
    """Return the stamp of a piece of an experiment in this file, as it is stored."""
    experiment = SimpleNamespace(
        __name__=__name__,
        TITLE="",
        ABOUT="",
        Settings=Settings,
        pieces=lambda settings: {"piece": piece},
        draw=play,
        measures=play,
    )
    return encode(module.stamps(experiment, settings)["piece"])


def test_arguments_count_and_other_settings_do_not():
    first = stamp(partial(work, 1, rate=0.5))
    assert first == stamp(partial(work, 1, rate=0.5), Settings(seeds=2))
    for other in (
        partial(work, 2, rate=0.5),
        partial(work, 1, rate=0.6),
        partial(play, 1, rate=0.5),
    ):
        assert stamp(other) != first


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Settings(), Settings(rates=(0.6,))),
        (partial(work, 1), partial(work, 2)),
        ({"a": [1]}, {"a": [2]}),
        (np.arange(3), np.arange(4)),
        (work, play),
        (Settings, work),
    ],
)
def test_what_is_inside_an_argument_counts(one, other):
    assert stamp(partial(work, one)) == stamp(partial(work, one))
    assert stamp(partial(work, one)) != stamp(partial(work, other))


@pytest.mark.parametrize(
    "piece",
    [lambda: work(), partial(work, lambda: 0), partial(work, object()), partial(np.arange(3).sum)],
)
def test_what_cannot_be_looked_into_depends_on_all_settings(piece):
    assert stamp(piece) == stamp(piece)
    assert stamp(piece) != stamp(piece, replace(Settings(), seeds=2))


def test_the_code_of_functions_among_the_arguments_counts(monkeypatch):
    used = []

    def dependencies(module, names):
        used.append((module, names))
        return SimpleNamespace(libraries={}, digest="")

    monkeypatch.setattr(module, "dependencies", dependencies)
    stamp(partial(work, partial(play), kind=Settings()))
    assert used == [(__name__, ("Settings", "play", "work"))]


def test_a_piece_is_refused_what_it_declares_as_unused():
    settings = without(Settings(seeds=3), "seeds")
    assert (settings.rates, stamp(partial(work, settings))) == (
        (0.5,),
        stamp(partial(work, without(Settings(seeds=4), "seeds"))),
    )
    for use in (range, bool, list, str, float, lambda value: value == 3):
        with pytest.raises(TypeError, match="declares as unused"):
            use(settings.seeds)
    with pytest.raises(AttributeError):
        without(Settings(), "sedes")


def test_all_pieces_of_all_experiments_can_be_looked_into():
    for listing in discover():
        if listing.experiment is not None:
            settings = listing.experiment.Settings.quick()
            for piece in listing.experiment.pieces(settings).values():
                assert module._Parts().describe(piece), listing.name
