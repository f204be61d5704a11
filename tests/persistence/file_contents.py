"""Files made by hand, and when two trees or values are the same."""

import io
import json
import math
import warnings
import zipfile

import equinox as eqx
import jax
import numpy as np
import safetensors.numpy


def shapes_of(tree):
    return eqx.filter_eval_shape(lambda: tree)


def bits(leaf):
    """Bytes, shape and type of a leaf: all that can differ between two of them."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(leaf.dtype), leaf.shape, np.asarray(jax.random.key_data(leaf)).tobytes()
    if isinstance(leaf, jax.Array | np.ndarray | np.generic):
        kind = jax.Array if isinstance(leaf, jax.Array) else type(leaf)
        return kind, str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes()
    return type(leaf), np.array(leaf).tobytes()


def assert_identical(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert bits(a) == bits(e)


def zip_of(members, *, compression=zipfile.ZIP_STORED):
    """The bytes of a zip with these (name, content) pairs."""
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", compression) as archive:
        warnings.simplefilter("ignore")  # zipfile warns of duplicate names
        for name, content in members:
            archive.writestr(name, content)
    return stream.getvalue()


TREE = {"w": np.arange(3.0), "flag": np.array([True, False]), "step": 3}
GOOD_ARRAYS = safetensors.numpy.save({"['w']": np.arange(3.0)})


def manifest(**changes):
    data = {
        "format": "pinfactory",
        "version": 1,
        "library": "0.1.0",
        "kind": "test",
        "meta": {},
        "arrays": {"['w']": {"shape": [3], "dtype": "float64"}},
    }
    return json.dumps(data | changes)


def model_file(*, content=GOOD_ARRAYS, extra=(), compression=zipfile.ZIP_STORED, **changes):
    members = [("manifest.json", manifest(**changes)), ("arrays.safetensors", content), *extra]
    return zip_of(members, compression=compression)


def rewritten_meta(path, to, old, new):
    """Write a file again with another text in its manifest."""
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    changed = [
        (name, content.replace(old.encode(), new.encode()) if "json" in name else content)
        for name, content in members
    ]
    assert changed != members
    to.write_bytes(zip_of(changed))


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, np.ndarray | np.generic) and a.dtype.kind in "Mm":
        return a.dtype == b.dtype and same(a.view(np.int64), b.view(np.int64))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and same(a.tolist(), b.tolist())
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and str(a) == str(b))
    return a == b
