"""Data frames as they are: which kinds their columns have, and how they become numbers and back."""

from .columns import DAYS, MISSING, OF_TEXT, OTHER, Column, Feature
from .encoding import INDICATOR_SCALE, Encoding
from .files import read_frame, write_frame
from .frames import as_frame, hash_frame, no_number
from .kinds import FAR, MIDDLE
from .rules import Gate, Rule, Rules
from .weights import Weight

__all__ = [
    "DAYS",
    "FAR",
    "INDICATOR_SCALE",
    "MIDDLE",
    "MISSING",
    "OF_TEXT",
    "OTHER",
    "Column",
    "Encoding",
    "Feature",
    "Gate",
    "Rule",
    "Rules",
    "Weight",
    "as_frame",
    "hash_frame",
    "no_number",
    "read_frame",
    "write_frame",
]
