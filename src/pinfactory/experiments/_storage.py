"""Where an experiment keeps its pieces, its result and its pictures: one folder of plain files."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pinfactory.persistence import atomic_write

from ._fingerprint import Dependencies

# What a result has, and of which type each part is.
_RESULT: Mapping[str, type | tuple[type, ...]] = {
    "name": str,
    "kind": str,
    "title": str,
    "about": str,
    "place": str,
    "claim": str,
    "scale": str,
    "settings": dict,
    "seeds": int,
    "skipped": dict,
    "versions": dict,
    "commit": str,
    "processor": str,
    "cores": int,
    "measures": list,
    "seconds": (int, float),
    "cpu_seconds": (int, float),
    "finished": str,
    "files": dict,
    "error": str,
}
_MEASURE: Mapping[str, type | tuple[type, ...]] = {
    "name": str,
    "ours": (int, float, type(None)),
    "spread": (int, float, type(None)),
    "n": (int, type(None)),
    "unit": str,
    "paper": (int, float, type(None)),
    "paper_method": (int, float, type(None)),
    "target": (int, float, type(None)),
    "higher_is_better": bool,
    "passed": (bool, type(None)),
}
_TIMES = ("seconds", "cpu_seconds")


class Folder:
    """The files of one experiment, run with one group of settings.

    A piece is stored with the fingerprint of settings, library versions and source code that it
    was computed with, and a digest of its data. It is found again only if both are right.
    """

    def __init__(self, out: Path, name: str, settings: Any, code: Dependencies) -> None:
        self.path = out / name
        stamp = {"settings": asdict(settings), "versions": code.libraries, "source": code.digest}
        self.fingerprint = digest(encode(stamp))[:16]

    def piece(self, name: str) -> dict[str, Any] | None:
        """Return a stored piece, or None if it has to be computed."""
        try:
            stored = json.loads(self._file(name).read_bytes())
        except (OSError, ValueError):
            return None
        if not isinstance(stored, dict) or not {"data", *_TIMES} <= stored.keys():
            return None
        expected = {
            "piece": name,
            "fingerprint": self.fingerprint,
            "digest": digest(encode(stored["data"])),
        }
        sound = all(stored.get(key) == value for key, value in expected.items())
        timed = all(isinstance(stored[name], int | float) for name in _TIMES)
        return stored if sound and timed else None

    def save_piece(self, name: str, data: Any, seconds: float, cpu_seconds: float) -> None:
        """Store a piece with the time it took, by the clock and of processors."""
        data = encode(data)
        content = {
            "piece": name,
            "fingerprint": self.fingerprint,
            "digest": digest(data),
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "data": json.loads(data),
        }
        write_file(self._file(name), encode(content))

    def _file(self, name: str) -> Path:
        # The digest keeps names apart that differ only in signs a file name cannot have.
        suffix = digest(name.encode())[:6]
        return self.path / "pieces" / f"{re.sub(r'[^0-9A-Za-z.=]+', '-', name)}-{suffix}.json"


def read_result(path: Path) -> dict[str, Any] | None:
    """Return the content of a result.json; None if there is none or it is damaged."""
    try:
        result = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not _has(result, _RESULT) or not all(_has(m, _MEASURE) for m in result["measures"]):
        return None
    return result


def _has(value: Any, parts: Mapping[str, type | tuple[type, ...]]) -> bool:
    return isinstance(value, dict) and all(
        name in value and isinstance(value[name], kind) for name, kind in parts.items()
    )


def read_checked(folder: Path, result: Mapping[str, Any], name: str) -> bytes | None:
    """Return a file that a run has written; None if it is not what the run wrote."""
    try:
        content = (folder / name).read_bytes()
    except OSError:
        return None
    return content if result["files"].get(name) == digest(content) else None


def write_file(path: Path, content: bytes) -> None:
    """Write a file wholly or not at all, with the folders it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as stream:
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
