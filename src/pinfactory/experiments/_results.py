"""Results that were written: how they are read, accepted, and compared with others."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinfactory.sweep.store import digest, write_file

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
    except (OSError, ValueError, RecursionError):  # lists within lists are the last
        return None
    if not _has(result, _RESULT) or not all(_has(m, _MEASURE) for m in result["measures"]):
        return None
    return result


def command_of(result: Mapping[str, Any]) -> str:
    """Return the command that makes a result again."""
    command = ["pinfactory", "reproduce", result["name"], "--scale", result["scale"]]
    changes = dict(result.get("changes", {}))
    method, seeds = result["settings"].get("method", "ours"), changes.pop("seeds", None)
    command += [] if method == "ours" else ["--method", method]
    command += [] if seeds is None else ["--seeds", str(seeds)]
    settings = [f"{name}={json.dumps(v, separators=(',', ':'))}" for name, v in changes.items()]
    return " ".join(command + (["--set", *settings] if settings else []))


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


# Numbers in these units are a machine's: they are compared on the same kind only.
_OF_MACHINE = ("s", "ms", "µs", "1/s")


@dataclass(frozen=True)
class Change:
    """A number compared with the same number of the accepted result."""

    name: str  #: what was measured
    #: The new mean and its deviation.
    new: float | None
    spread: float | None
    old: float | None  #: the accepted mean
    #: "better", "worse", "changed" (where neither side is the good one) or "same" within the
    #: spread of both; "new" if nothing was accepted; "" if the two cannot be compared.
    verdict: str


def read_accepted(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the accepted results, or those of another run, by name; a damaged one is an error."""
    paths = {path.stem: path for path in sorted(folder.glob("*.json"))}
    paths = paths or {path.parent.name: path for path in sorted(folder.glob("*/result.json"))}
    found = {}
    for name, path in paths.items():
        result = read_result(path)
        if result is None or result["name"] != name:
            raise ValueError(f"{path} is not the result of {name}")
        found[name] = result
    return found


def accept_result(out: Path, folder: Path, name: str) -> Path:
    """Copy the result of an experiment to the accepted ones; return where it is."""
    source = out / name / "result.json"
    result = read_result(source)
    if result is None:
        raise ValueError(f"{source} is damaged: run {name} again")
    if result["error"]:
        raise ValueError(f"{name} failed, so that its result cannot be accepted")
    target = folder / f"{name}.json"
    write_file(target, source.read_bytes())
    return target


def compare(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> list[Change]:
    """Compare all numbers of a result with those of an older one with the same settings."""
    comparable = old is not None and new["settings"] == old["settings"] and new is not old
    before = {m["name"]: m for m in old["measures"]} if comparable and old else {}
    same_machine = comparable and old is not None and new["processor"] == old["processor"]
    changes = []
    for measure in new["measures"]:
        past = before.get(measure["name"])
        verdict = "" if old is not None and not comparable else "new"
        if past is not None:
            foreign = measure["unit"] in _OF_MACHINE and not same_machine
            verdict = "" if foreign else _verdict(measure, past)
        changes.append(
            Change(
                measure["name"],
                measure["ours"],
                measure["spread"],
                past["ours"] if past else None,
                verdict,
            )
        )
    return changes


def _verdict(new: Mapping[str, Any], old: Mapping[str, Any]) -> str:
    if new["ours"] is None or old["ours"] is None:
        return "same" if new["ours"] == old["ours"] else "changed"
    gain = new["ours"] - old["ours"]
    tolerance = (new["spread"] or 0.0) + (old["spread"] or 0.0) + 1e-9 * abs(old["ours"])
    if abs(gain) <= tolerance:
        return "same"
    if new["target"] is None and new["unit"] != "×":
        return "changed"
    return "better" if (gain > 0) == new["higher_is_better"] else "worse"
