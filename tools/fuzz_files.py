"""Alter model files at random and load them: `python tools/fuzz_files.py FOLDER -n 10000 [KIND …]`.

`FOLDER` holds the files of `tools/model_files.py`. Every altered file must be refused with a
`ModelFileError`, or load as a model that answers with finite numbers or a `ValueError` or
`TypeError`. Whatever else happens (another error, NaN, more than 1 GB, more than a minute of
computing) is printed with the seed of the file, and the exit code is 1.
"""

import argparse
import contextlib
import copy
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from counts import Trial, record, recorded
from model_files import MODELS

from pinfactory.persistence import ModelFileError, load

# Counts are recorded after so many files.
BATCH = 500
MOST_MEGABYTES, MOST_SECONDS = 1024, 60
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 1000, 20_000, 10**6, 6 * 10**7, 10**9, 2**31, 2**63),
    *(10**30, 0.5, -0.5, 1e-30, 1e30, 1e308, "", "a", "nan", "linear", "mlp", "os.system"),
    *([], [0], [20_000, 20_000], [[1]], {}, {"a": 1}, {"$float": "nan"}, {"$float": "inf"}),
    *({"$tuple": []}, {"$tuple": [20_000, 20_000]}, {"$tuple": [1, "a"]}, {"$unknown": 1}),
    *({"$array": ["float64", [2], [0.0, -1.0]]}, {"$array": ["<U99999999", [0], []]}),
    *({"$array": ["float64", [1], [{"$float": "nan"}]]}, {"$scalar": ["float32", 1e30]}),
]


TRIAL = Trial(
    "altered_files",
    "Altered model files",
    """
A small file of every kind of model is altered at random in its bytes, its manifest or its arrays,
and loaded. It is refused with a `ModelFileError`, or the model answers with finite numbers, or it
is unusable: it answers with a `ValueError` or `TypeError`. Anything else is a fault: another error,
NaN, more than a gigabyte or more than a minute of computing.
""",
    "python tools/fuzz_files.py FOLDER -n 10000 --record results",
)


class Outcome(NamedTuple):
    """What became of an altered file: "refused", "answered", "unusable", or a fault."""

    name: str
    fault: bool = False
    detail: str = ""


def alter(content: bytes, draw: random.Random) -> bytes:
    """Return the file with one to three alterations of its bytes, manifest or arrays."""
    if draw.random() < 0.3:
        return alter_bytes(content, draw)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        arrays = safetensors.numpy.load(archive.read("arrays.safetensors"))
    for _ in range(draw.choice((1, 1, 2, 3))):
        if draw.random() < 0.7 or not arrays:
            alter_manifest(manifest, draw)
        else:
            alter_arrays(manifest, arrays, draw)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("arrays.safetensors", safetensors.numpy.save(arrays))
    return stream.getvalue()


def alter_bytes(content: bytes, draw: random.Random) -> bytes:
    """Flip a bit, cut, insert, repeat or append bytes."""
    at, length = draw.randrange(len(content)), draw.choice((1, 2, 8, 100))
    noise = draw.randbytes(length)
    return draw.choice(
        (
            content[:at],
            content + noise,
            noise + content,
            content[:at] + noise + content[at:],
            content[:at] + content[at + length :],
            content[:at] + bytes(length) + content[at + length :],
            content[:at] + content[at - length :],
            content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :],
        )
    )


def alter_manifest(manifest: dict[str, Any], draw: random.Random) -> None:
    """Replace, remove or add a value somewhere, mostly among the settings.

    Values are copied: a later alteration may change what an earlier one put in.
    """
    meta = manifest.get("meta")
    settings = isinstance(meta, dict | list) and meta and draw.random() < 0.9
    places = list(_places(meta if settings else manifest))
    holder, key = draw.choice(places)
    action = draw.random()
    if action < 0.8:
        old = holder[key]
        near = [old + 1, old - 1, -old, old * 1000] if type(old) in (int, float) else []
        holder[key] = copy.deepcopy(draw.choice([*VALUES, *3 * near]))
    elif action < 0.9:
        del holder[key]
    elif isinstance(holder, dict):
        holder[draw.choice(("evil", "__class__", "predict", "fit", "_from_file"))] = 1
    else:
        holder.append(copy.deepcopy(draw.choice(VALUES)))


@np.errstate(all="ignore")  # casts of numbers that do not fit
def alter_arrays(
    manifest: dict[str, Any], arrays: dict[str, np.ndarray], draw: random.Random
) -> None:
    """Change numbers, the shape or the type of an array, or remove it; the manifest follows."""
    name = draw.choice(sorted(arrays))
    array = arrays[name].copy()
    action = draw.random()
    if action < 0.6 and array.size:
        number = draw.choice((np.nan, np.inf, -np.inf, 0.0, -1.0, 1e30, -1e30))
        array.reshape(-1)[draw.randrange(array.size)] = np.asarray(number).astype(array.dtype)
    elif action < 0.75:
        array = np.resize(array, draw.choice(((), (0,), (2,), (3, 2), (1000,))))
    elif action < 0.9:
        array = array.astype(draw.choice(("float32", "float64", "int32", "bool")))
    else:
        del arrays[name]
        if isinstance(manifest.get("arrays"), dict):
            manifest["arrays"].pop(name, None)
        return
    arrays[name] = array
    specs = manifest.get("arrays")
    stated = specs.get(name) if isinstance(specs, dict) else None
    if isinstance(stated, dict) and not str(stated.get("dtype")).startswith(("python", "key")):
        specs[name] = {"shape": list(array.shape), "dtype": array.dtype.name}


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every holder and key in nested lists and mappings."""
    items = enumerate(value) if isinstance(value, list) else value.items()
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def judge(path: Path, answer: Callable[[Any], np.ndarray]) -> Outcome:
    """Load an altered file and ask the model; say what came of it."""
    before = megabytes()
    try:
        with time_limit(MOST_SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = _judge(path, answer)
    except TimeoutError:
        return Outcome("too slow", True)
    if (used := megabytes() - before) > MOST_MEGABYTES:
        return Outcome("too large", True, f"{used} MB")
    return outcome


def _judge(path: Path, answer: Callable[[Any], np.ndarray]) -> Outcome:
    try:
        model = load(path)
    except ModelFileError:
        return Outcome("refused")
    except TimeoutError:
        raise
    except Exception as error:
        return Outcome(f"load raises {type(error).__name__}", True, where_raised(error))
    try:
        numbers = np.asarray(answer(model))
    except (ValueError, TypeError):
        return Outcome("unusable")
    except TimeoutError:
        raise
    except Exception as error:
        return Outcome(f"answer raises {type(error).__name__}", True, where_raised(error))
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        return Outcome("answers are not finite", True)
    return Outcome("answered")


def where_raised(error: Exception) -> str:
    """Return the last line of the library that an error passed through, and the error."""
    frames = traceback.extract_tb(error.__traceback__)
    last = ([f for f in frames if "pinfactory" in f.filename] or frames)[-1]
    return f"{Path(last.filename).name}:{last.lineno} {error!r:.160}"


def megabytes() -> int:
    """Return the most memory that the process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError if what happens inside takes longer, in time of the processor.

    On a machine that is busy with other things everything takes longer.
    """

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def limit_memory() -> None:
    """Let the process have so much memory that others do not suffer if a file asks for more."""
    most = 4 * MOST_MEGABYTES * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def fuzz(kind: str, content: bytes, seeds: range) -> Iterator[tuple[int, Outcome]]:
    """Yield the outcome of every seed's altered file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "altered.pin")
        path.write_bytes(content)
        if (unaltered := judge(path, MODELS[kind].answer)).name != "answered":
            raise RuntimeError(f"{kind}: the unaltered file is not answered but {unaltered}")
        for seed in seeds:
            path.write_bytes(alter(content, random.Random(seed)))
            yield seed, judge(path, MODELS[kind].answer)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kinds", nargs="*", default=list(MODELS))
    parser.add_argument("-n", type=int, default=300, help="files of each kind")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first file")
    parser.add_argument("--record", type=Path, help="folder for the counts as a result")
    parser.add_argument("--more", action="store_true", help="go on with the counts in --record")
    args = parser.parse_intermixed_args()
    limit_memory()
    n_faults = 0
    for kind in args.kinds:
        content = (args.folder / f"{kind}.pin").read_bytes()
        counts: Counter[str] = Counter(tried=0, refused=0, answered=0, unusable=0, faults=0)
        if args.more:
            counts.update(recorded(args.record, TRIAL, kind))
        seeds = range(args.seed + counts["tried"], args.seed + args.n)
        for seed, outcome in fuzz(kind, content, seeds):
            counts.update(["tried", "faults" if outcome.fault else outcome.name])
            if outcome.fault:
                print(f"  {kind} seed {seed}: {outcome.name} {outcome.detail}", flush=True)
            if args.record and (counts["tried"] % BATCH == 0 or seed == seeds[-1]):
                record(args.record, TRIAL, kind, args.seed, counts)
        print(f"{kind}: {dict(counts)}, peak {megabytes()} MB", flush=True)
        n_faults += counts["faults"]
    return int(n_faults > 0)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
