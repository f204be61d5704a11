"""Where an experiment keeps its pieces, its result and its pictures: one folder of plain files."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pinfactory
from pinfactory.persistence._atomic import atomic_write

_LIBRARIES = ("pinfactory", "jax", "equinox", "optax", "numpy", "scipy", "scikit-learn")
# What changes a page or a picture but no number.
_NO_NUMBERS = ("report", "plotting", "cli")


class Folder:
    """The files of one experiment, run with one group of settings.

    A piece is stored with the fingerprint of settings, library versions and source code that it
    was computed with, and only found again by the same.
    """

    def __init__(self, out: Path, name: str, settings: Any) -> None:
        self.path = out / name
        stamp = {"settings": asdict(settings), "versions": versions(), "source": _source()}
        self.fingerprint = hashlib.sha256(encode(stamp)).hexdigest()[:16]

    def piece(self, name: str) -> dict[str, Any] | None:
        """Return a stored piece, or None if it has to be computed."""
        try:
            stored = json.loads(self._file(name).read_bytes())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return stored if stored.get("fingerprint") == self.fingerprint else None

    def save_piece(self, name: str, data: Any, seconds: float) -> dict[str, Any]:
        """Store a piece and return it as `piece` will."""
        content = {
            "piece": name,
            "fingerprint": self.fingerprint,
            "seconds": seconds,
            "data": data,
        }
        encoded = encode(content)
        write(self._file(name), encoded)
        return json.loads(encoded)

    def _file(self, name: str) -> Path:
        # The digest keeps names apart that differ only in signs a file name cannot have.
        digest = hashlib.sha256(name.encode()).hexdigest()[:6]
        return self.path / "pieces" / f"{re.sub(r'[^0-9A-Za-z.=]+', '-', name)}-{digest}.json"


def write(path: Path, content: bytes) -> None:
    """Write a file wholly or not at all, with the folders it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as stream:
        stream.write(content)


def encode(data: Any) -> bytes:
    """Return plain data as JSON; NumPy's numbers and arrays count as plain."""
    return json.dumps(data, default=_plain, ensure_ascii=False).encode()


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(
        "a piece must return plain data (numbers, strings, lists, dicts, arrays), but got "
        f"{type(value).__name__}"
    )


def finite(value: Any) -> Any:
    """Return plain data with None for what is not a finite number, as strict JSON requires."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


@cache
def versions() -> dict[str, str]:
    """Return the versions that numbers depend on."""
    return {name: version(name) for name in _LIBRARIES}


@cache
def _source() -> str:
    """Return a digest of all code that computes numbers."""
    root = Path(pinfactory.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        place = file.relative_to(root)
        if place.parts[0].removesuffix(".py") not in _NO_NUMBERS:
            digest.update(str(place).encode() + file.read_bytes())
    return digest.hexdigest()
