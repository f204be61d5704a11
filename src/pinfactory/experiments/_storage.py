"""Reading the result of an experiment and the files that belong to it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pinfactory.sweep.store import digest

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
