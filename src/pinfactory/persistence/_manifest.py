"""What a file says about itself, as JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np

from ._atomic import FilePath
from ._errors import (
    DamagedFileError,
    NotAModelFileError,
    NotStorableError,
    UnsupportedVersionError,
)
from ._json import from_json, to_json

FORMAT, VERSION = "pinfactory", 1
MAX_MANIFEST_BYTES = 2**26

# The element types of safetensors that a file may hold.
DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "U8": np.dtype(np.uint8),
    "U16": np.dtype(np.uint16),
    "U32": np.dtype(np.uint32),
    "U64": np.dtype(np.uint64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
# Python scalars and random keys are stored as arrays of these types.
PYTHON_DTYPES = {"python.bool": "bool", "python.int": "int64", "python.float": "float64"}
KEY_PREFIX, KEY_DTYPE = "key<", "uint32"


@dataclass(frozen=True)
class ArraySpec:
    """The shape and element type of a stored array.

    `dtype` is a NumPy name such as `float32`, `python.bool`, `python.int` or `python.float` for a
    Python scalar, or the name of a random key type such as `key<fry>`.
    """

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def is_storage_of(self, array: np.ndarray) -> bool:
        """Tell whether `array` is how safetensors holds what is described here."""
        if self.dtype.startswith(KEY_PREFIX):
            leading = array.shape[: len(self.shape)]
            return array.dtype.name == KEY_DTYPE and leading == self.shape
        name = PYTHON_DTYPES.get(self.dtype, self.dtype)
        return array.dtype.name == name and array.shape == self.shape


@dataclass(frozen=True)
class Manifest:
    """What a file says about itself: format version, writer, kind, parameters and arrays."""

    version: int
    library: str
    kind: str
    meta: dict[str, Any]
    arrays: dict[str, ArraySpec]


def manifest_to_text(kind: str, meta: Mapping[str, Any], specs: Mapping[str, ArraySpec]) -> bytes:
    """Write a manifest; the same content gives the same bytes."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "library": version("pinfactory"),
        "kind": kind,
        "meta": to_json(meta, "meta"),
        "arrays": {
            name: {"shape": list(spec.shape), "dtype": spec.dtype}
            for name, spec in sorted(specs.items())
        },
    }
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, indent=1).encode()
    if len(text) > MAX_MANIFEST_BYTES:
        raise NotStorableError(
            f"the manifest must be at most {MAX_MANIFEST_BYTES} bytes long, but got {len(text)}; "
            "store large values as arrays in the tree"
        )
    return text


def manifest_from_text(text: bytes, path: FilePath) -> Manifest:
    """Read a manifest and check all of it; `path` is for the errors."""
    try:
        data = json.loads(
            text.decode(), parse_constant=_refuse_constant, object_pairs_hook=_unique_keys
        )
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path}: the manifest is not valid JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise NotAModelFileError(f"{path} must be a pinfactory file; its manifest says otherwise")
    if type(data.get("version")) is not int or data["version"] != VERSION:
        raise UnsupportedVersionError(
            f"{path} must have format version {VERSION}, but got {data.get('version')!r} "
            f"(written by pinfactory {data.get('library')!r}); upgrade pinfactory to load it"
        )
    try:
        specs = {name: _parse_spec(**spec) for name, spec in data["arrays"].items()}
        if not all(type(data[key]) is str for key in ("library", "kind")):
            raise ValueError("library and kind must be strings")
        if type(meta := from_json(data["meta"])) is not dict:
            raise ValueError("meta must be a mapping")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedFileError(f"{path}: the manifest is not as it must be: {error!r}") from error
    return Manifest(VERSION, data["library"], data["kind"], meta, specs)


def _parse_spec(*, shape: Any, dtype: Any) -> ArraySpec:
    if type(dtype) is not str or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"an array must have a shape and a dtype, but got {shape!r}, {dtype!r}")
    return ArraySpec(tuple(shape), dtype)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(unique := dict(pairs)) < len(pairs):
        raise ValueError("a key appears twice")
    return unique
