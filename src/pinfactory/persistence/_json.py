"""Plain values as strict JSON and back, with nothing lost on the way.

JSON has no tuple, no nan and no NumPy types. Each of these becomes an object with one key that
starts with `$`; a mapping that could be mistaken for one, or whose keys are not strings, becomes
`{"$dict": [[key, value], …]}`.
"""

import datetime
import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from ._errors import DamagedFileError, NotStorableError

JSON: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None

_MAX_DEPTH = 64
# A few hostile characters ("<U99999999") must not allocate more than a manifest could hold.
_MAX_ARRAY_BYTES = 2**26
_NUMBERS = frozenset(
    np.dtype(name).name
    for name in ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
)
# What NumPy calls dates and durations, such as datetime64[ns] or timedelta64[25s].
_DATES = re.compile(r"(datetime|timedelta)64(\[\d{0,9}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?")
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_json(value: object, where: str = "value") -> JSON:
    """Turn a plain value into strict JSON that `from_json` turns back exactly.

    Parameters
    ----------
    value
        None, bool, int, float (nan and infinities too), str, list, tuple, mapping, NumPy scalar,
        or NumPy array of numbers, strings, dates or such objects; nested at will, up to 64 levels.
    where
        How errors name the value.

    Raises
    ------
    NotStorableError
        For anything else, such as a function, naming the place.
    """
    return _encode(value, where, 0)


def from_json(value: JSON) -> Any:
    """Turn the JSON made by `to_json` back into the value.

    Raises
    ------
    DamagedFileError
        If `value` is not something that `to_json` returns.
    """
    try:
        return _decode(value, 0)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedFileError(
            f"the JSON value must be one that to_json wrote, but got: {error}"
        ) from error


def _encode(value: object, where: str, depth: int) -> JSON:
    if depth > _MAX_DEPTH:
        raise NotStorableError(f"{where} must be nested at most {_MAX_DEPTH} levels deep")
    if value is None or type(value) in (bool, int):
        return value  # type: ignore[return-value]  # mypy does not narrow on exact types
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if type(value) is str:
        return _text(value, where)
    if type(value) is list:
        return [_encode(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    if type(value) is tuple:
        return {"$tuple": [_encode(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]}
    if isinstance(value, Mapping):
        values = [_encode(v, f"{where}[{k!r}]", depth + 1) for k, v in value.items()]
        if all(type(k) is str and not k.startswith("$") for k in value):
            return {_text(k, f"{where}'s keys"): v for k, v in zip(value, values, strict=True)}
        keys = [_encode(k, f"{where}'s keys", depth + 1) for k in value]
        return {"$dict": [[k, v] for k, v in zip(keys, values, strict=True)]}
    if isinstance(value, np.str_):
        return {"$scalar": ["str", _text(str(value), where)]}
    if isinstance(value, np.datetime64 | np.timedelta64):
        return {"$scalar": [value.dtype.name, int(value.view(np.int64))]}
    if isinstance(value, np.generic) and value.dtype.name in _NUMBERS:
        return {"$scalar": [value.dtype.name, _encode(value.item(), where, depth + 1)]}
    if type(value) is np.ndarray:
        return {"$array": _encode_array(value, where, depth)}
    if isinstance(value, np.random.RandomState | np.random.Generator):
        raise NotStorableError(
            f"{where} must be an int or None to be stored in a model file, but got "
            f"{_describe(value)}; call set_params(random_state=0) before saving"
        )
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        raise NotStorableError(
            f"{where} must be a NumPy date (numpy.datetime64) or text to be stored in a model "
            f"file, but got {_describe(value)}; fit with y.astype('datetime64[s]') or y.astype(str)"
        )
    raise NotStorableError(
        f"{where} must be None, a bool, number, string, list, tuple, mapping, NumPy scalar or NumPy"
        f" array to be stored in a model file, but got {_describe(value)}"
    )


def _encode_array(array: np.ndarray, where: str, depth: int) -> list[Any]:
    if array.dtype.kind not in "UOMm" and array.dtype.name not in _NUMBERS:
        raise NotStorableError(
            f"{where} must be an array of numbers, strings, dates or objects, but got {array.dtype}"
        )
    if array.nbytes > _MAX_ARRAY_BYTES:
        raise NotStorableError(
            f"{where} must be smaller than {_MAX_ARRAY_BYTES} bytes, but got {array.nbytes}; "
            "store large arrays in the tree"
        )
    dtype = {"U": f"<U{array.dtype.itemsize // 4}", "O": "object"}.get(
        array.dtype.kind, array.dtype.name
    )
    if array.dtype.kind in "Mm":
        array = array.astype(array.dtype.newbyteorder("=")).view(np.int64)
    items = [_encode(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(array.ravel().tolist())]
    return [dtype, list(array.shape), items]


def _text(value: str, where: str) -> str:
    # JSON would join two lone surrogates to one character.
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise NotStorableError(f"{where} must be valid Unicode text, but got {value!r}")
    return value


def _describe(value: object) -> str:
    kind = "a function" if callable(value) and not isinstance(value, type) else "a value"
    return f"{kind} of type {type(value).__module__}.{type(value).__qualname__}"


def _decode(value: JSON, depth: int) -> Any:
    if depth > 2 * _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [_decode(v, depth + 1) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not next(iter(value)).startswith("$"):
        return {k: _decode(v, depth + 1) for k, v in value.items()}
    ((tag, content),) = value.items()
    if tag == "$float":
        return _NOT_FINITE[content]
    if tag == "$tuple" and isinstance(content, list):
        return tuple(_decode(v, depth + 1) for v in content)
    if tag == "$dict":
        return {_decode(k, depth + 1): _decode(v, depth + 1) for k, v in content}
    if tag == "$scalar":
        dtype, item = content
        if dtype == "str":
            return np.str_(item)
        return _array(dtype, (), [_decode(item, depth + 1)])[()]
    if tag == "$array":
        dtype, shape, items = content
        return _array(dtype, shape, [_decode(v, depth + 1) for v in items])
    raise ValueError(f"unknown tag {tag!r}")


def _array(name: str, shape: Any, items: list[Any]) -> np.ndarray:
    dated = _DATES.fullmatch(name) is not None
    # With more digits the item size overflows in some versions of NumPy.
    text = re.fullmatch(r"<U\d{1,8}", name)
    if name not in _NUMBERS and name != "object" and not text and not dated:
        raise ValueError(f"unknown dtype {name!r}")
    dtype = np.dtype("int64" if dated else name)
    if dtype.itemsize * len(items) > _MAX_ARRAY_BYTES or math.prod(shape) != len(items):
        raise ValueError(f"{len(items)} items do not fill a {name} array of shape {shape}")
    flat = np.empty(len(items), dtype)
    for i, item in enumerate(items):  # a slice would broadcast objects that are sequences
        flat[i] = item
    return (flat.view(name) if dated else flat).reshape(shape)
