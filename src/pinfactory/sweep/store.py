"""A store of pieces of work: a file of plain data for each, found again only if it still holds."""

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_TIMES = ("seconds", "cpu_seconds")


class Computed(NamedTuple):
    """What computing a piece gave, ready to be sent and stored."""

    content: bytes  # the data as JSON
    # The time it took, by the clock and of processors.
    seconds: float
    cpu_seconds: float


def compute(function: Callable[[], Any]) -> Computed:
    """Call a function that returns plain data."""
    (computed,) = compute_block(lambda: [function()])
    return computed


def compute_block(function: Callable[[], Sequence[Any]]) -> list[Computed]:
    """Call a function that returns plain data of several pieces, which share the time it takes."""
    began, began_cpu = time.perf_counter(), time.process_time()
    pieces = function()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    n = len(pieces)
    return [Computed(_read_back(encode(d)), seconds / n, cpu_seconds / n) for d in pieces]


def _read_back(content: bytes) -> bytes:
    """Return a content that reads as what was written."""
    if encode(json.loads(content)) != content:
        raise ValueError(
            "a piece must have no two keys of one name, but JSON writes 1 and '1' alike"
        )
    return content


class Store:
    """Pieces in a folder, all computed with one group of settings and one state of the code.

    A piece is stored with the fingerprint of what it was computed with, and a digest of its data.
    It is found again only if both are right.

    Parameters
    ----------
    folder
        Where the files are; made when the first piece is stored.
    stamp
        Plain data that the pieces depend on: settings, versions of libraries, source code.
    """

    def __init__(self, folder: Path, stamp: Mapping[str, Any]) -> None:
        self.folder = folder
        self.fingerprint = digest(encode(stamp))[:16]

    @classmethod
    def shared(cls, folder: Path, stamp: Mapping[str, Any]) -> "Store":
        """Return a store in a folder that others may use with other settings or code."""
        return cls(folder / digest(encode(stamp))[:16], stamp)

    def piece(self, name: str) -> dict[str, Any] | None:
        """Return a stored piece, or None if it has to be computed."""
        try:
            stored = json.loads(self._file(name).read_bytes())
            if not isinstance(stored, dict) or not {"data", *_TIMES} <= stored.keys():
                return None
            found = digest(encode(stored["data"]))
        except (OSError, ValueError, RecursionError):
            # Missing or damaged: text that is no text and lists within lists are among that, too.
            return None
        expected = {"piece": name, "fingerprint": self.fingerprint, "digest": found}
        sound = all(stored.get(key) == value for key, value in expected.items())
        timed = all(isinstance(stored[name], int | float) for name in _TIMES)
        return stored if sound and timed else None

    def save(self, name: str, computed: Computed) -> None:
        """Store a piece."""
        content = {
            "piece": name,
            "fingerprint": self.fingerprint,
            "digest": digest(computed.content),
            "seconds": computed.seconds,
            "cpu_seconds": computed.cpu_seconds,
            "data": json.loads(computed.content),
        }
        # What the disk loses with the power is noticed by the digest, and computed again.
        write_file(self._file(name), encode(content), durable=False)

    def _file(self, name: str) -> Path:
        # The digest keeps names apart that differ in signs or length a file name cannot have.
        suffix = digest(name.encode())[:12]
        readable = re.sub(r"[^0-9A-Za-z.=]+", "-", name)[:120]
        return self.folder / f"{readable}-{suffix}.json"


def write_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file wholly or not at all, with the folders it needs."""
    from pinfactory.persistence import atomic_write  # imports JAX, which a worker may not need

    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, durable=durable) as stream:
        stream.write(content)


def digest(content: bytes) -> str:
    """Return the SHA-256 of a content."""
    return hashlib.sha256(content).hexdigest()


def encode(data: Any, indent: int | None = None) -> bytes:
    """Return plain data as JSON; NumPy's numbers and arrays count as plain."""
    return json.dumps(data, default=_plain, ensure_ascii=False, indent=indent).encode()


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
