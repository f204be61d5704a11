"""The squares, with two measures of one name."""

from pinfactory.experiments import Measure
from toys.squares import ABOUT as ABOUT
from toys.squares import Settings as Settings
from toys.squares import draw as draw
from toys.squares import pieces as pieces

TITLE = "Undrawn"


def measures(results):
    return [Measure("same", 1.0), Measure("same", 2.0)]
