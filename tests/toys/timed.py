"""The squares, as something that measures time."""

from toys.squares import ABOUT as ABOUT
from toys.squares import Settings as Settings
from toys.squares import draw as draw
from toys.squares import measures as measures
from toys.squares import pieces as pieces

TITLE = "Timed"
ALONE = True


def skipped():
    return {"Tin": "pip install tin"}
