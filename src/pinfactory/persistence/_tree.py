"""Pytrees to files and back, bit for bit."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ._atomic import FilePath
from ._container import read, write
from ._errors import MismatchError, NotStorableError, UnknownKindError
from ._manifest import DTYPES, KEY_PREFIX, PYTHON_DTYPES, ArraySpec, Manifest

_NUMPY_NAMES = frozenset(dtype.name for dtype in DTYPES.values())


def save_tree(
    path: FilePath, tree: PyTree, *, kind: str, meta: Mapping[str, Any] | None = None
) -> None:
    """Save the arrays of a pytree, atomically.

    Parameters
    ----------
    path
        The file to write or replace. Its directory must exist.
    tree
        Any pytree. JAX and NumPy arrays, typed random keys and Python's bool, int and float are
        stored under their `jax.tree_util.keystr`. Other leaves (functions, strings) and static
        fields are not: they come from the skeleton when the tree is loaded.
    kind
        What the file holds, such as `"checkpoint"`; it must be named again to load the tree.
    meta
        Plain values to keep in the manifest; see `to_json`.

    Raises
    ------
    NotStorableError
        If an array has an element type without an exact place in the file, an int is beyond 64
        bits, or `meta` holds something else than plain values.

    Examples
    --------
    >>> import os, tempfile, jax.numpy as jnp
    >>> path = os.path.join(tempfile.mkdtemp(), "state.pin")
    >>> save_tree(path, {"step": 3, "w": jnp.arange(2.0)}, kind="checkpoint")
    >>> load_tree(path, {"step": 0, "w": jnp.zeros(2)}, kind="checkpoint")
    {'step': 3, 'w': Array([0., 1.], dtype=float32)}
    """
    write(path, kind, meta or {}, *stored_arrays(tree))


def stored_arrays(tree: PyTree) -> tuple[dict[str, ArraySpec], dict[str, np.ndarray]]:
    """Return what a file says of the arrays of a tree, and the arrays, by their paths."""
    specs: dict[str, ArraySpec] = {}
    arrays: dict[str, np.ndarray] = {}
    for key_path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if (spec := _spec(leaf)) is None:
            continue
        name = jax.tree_util.keystr(key_path)
        if name in specs:
            raise NotStorableError(f"each leaf must have its own path, but two are called {name}")
        specs[name], arrays[name] = spec, _to_storage(name, spec, leaf)
    return specs, arrays


def load_tree(path: FilePath, like: PyTree, *, kind: str) -> PyTree:
    """Load a pytree that `save_tree` saved.

    Parameters
    ----------
    path
        The file.
    like
        A skeleton: a tree of the same structure whose arrays have the shapes and element types
        of the saved ones; `jax.ShapeDtypeStruct` leaves will do, such as those that
        `equinox.filter_eval_shape` returns. What is not stored is taken from here.
    kind
        What the file must hold.

    Returns
    -------
    PyTree
        The skeleton with the saved values. A leaf is a NumPy array or scalar, a Python scalar, a
        random key or a JAX array, as it is in the skeleton.

    Raises
    ------
    ModelFileError
        `UnknownKindError` if the file holds another kind, `MismatchError` if its arrays are not
        those of the skeleton, another subclass if the file is not sound.
    """
    manifest, arrays = read(path)
    if manifest.kind != kind:
        raise UnknownKindError(f"{path} must hold a {kind!r}, but it holds a {manifest.kind!r}")
    return fill(path, manifest, arrays, like)


def fill(
    path: FilePath, manifest: Manifest, arrays: Mapping[str, np.ndarray], like: PyTree
) -> PyTree:
    """Put a file's arrays into a skeleton, after checking that they are the same set."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    named = [(jax.tree_util.keystr(key_path), leaf) for key_path, leaf in leaves]
    expected = {name: spec for name, leaf in named if (spec := _spec(leaf)) is not None}
    if problems := [
        f"{name or 'the tree'} must be {expected.get(name, 'absent')}, "
        f"but the file has {manifest.arrays.get(name, 'no such array')}"
        for name in sorted(expected.keys() | manifest.arrays.keys())
        if expected.get(name) != manifest.arrays.get(name)
    ]:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise MismatchError(f"{path} does not fit: {'; '.join(problems[:5])}{more}")
    values = [
        _from_storage(f"{path}: {name}", leaf, arrays[name]) if name in expected else leaf
        for name, leaf in named
    ]
    return jax.tree_util.tree_unflatten(structure, values)


def _spec(leaf: Any) -> ArraySpec | None:
    """Describe a leaf as a file does; None for one that is not stored."""
    if type(leaf) in (bool, int, float):
        return ArraySpec((), f"python.{type(leaf).__name__}")
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic):
        return ArraySpec(tuple(leaf.shape), leaf.dtype.name)
    return None


def _is_key(spec: ArraySpec) -> bool:
    return spec.dtype.startswith(KEY_PREFIX)


def _to_storage(name: str, spec: ArraySpec, leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise NotStorableError(f"{name} must have a value to be stored, but got {leaf}")
    if spec.dtype in PYTHON_DTYPES:
        try:
            return np.array(leaf, PYTHON_DTYPES[spec.dtype])
        except OverflowError as error:
            raise NotStorableError(f"{name} must fit into 64 bits, but got {leaf}") from error
    if _is_key(spec):
        return np.asarray(jax.random.key_data(leaf))
    if spec.dtype not in _NUMPY_NAMES:
        raise NotStorableError(
            f"{name} must be an array of {', '.join(sorted(_NUMPY_NAMES))} or random keys, "
            f"but got {spec.dtype}; text belongs into meta"
        )
    array = np.asarray(leaf, order="C")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _from_storage(name: str, leaf: Any, array: np.ndarray) -> Any:
    if isinstance(leaf, np.ndarray):
        return array
    if isinstance(leaf, np.generic):
        return array[()]
    if isinstance(leaf, bool | int | float):
        return array.item()
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return _to_keys(name, leaf, array)
    if jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype:
        raise MismatchError(
            f"{name} must be {leaf.dtype}, but JAX cannot hold it: set jax_enable_x64 to load it"
        )
    zero = jnp.asarray(array.dtype.type(0).item())
    if leaf.weak_type and zero.dtype == leaf.dtype:
        # A strong type in its place would change promotion and compile every step anew.
        return jnp.broadcast_to(zero, array.shape).at[...].set(array)
    # `jnp.array` would compile a program for every shape.
    return jax.device_put(array, may_alias=False)


def _to_keys(name: str, leaf: Any, data: np.ndarray) -> jax.Array:
    implementations = []

    def look(keys: jax.Array) -> jax.Array:
        implementations.append(jax.random.key_impl(keys))
        return jax.random.key_data(keys)

    # Traced, because a skeleton may hold the mere shape of a key.
    expected = jax.eval_shape(look, leaf).shape
    if data.shape != expected:
        raise MismatchError(
            f"{name} must hold key data of shape {expected}, but the file has {data.shape}"
        )
    return jax.random.wrap_key_data(jax.device_put(data, may_alias=False), impl=implementations[0])
