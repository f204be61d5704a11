"""Model files: exact round trips, atomic writes, and a named error for every bad file."""

import io
import json
import math
import os
import pickle
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
import zipfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pinfactory.persistence import (
    ArraySpec,
    DamagedFileError,
    MismatchError,
    ModelFileError,
    NotAModelFileError,
    NotStorableError,
    UnknownKindError,
    UnsupportedVersionError,
    _atomic,
    from_json,
    load,
    load_tree,
    read_manifest,
    register,
    save_model,
    save_tree,
    to_json,
)


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


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.pin"


# Round trips


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"),
        *("float16", "bfloat16", "float32"),
    ],
)
def test_jax_arrays_of_every_type_and_shape_return_bit_for_bit(path, dtype):
    shapes = [(), (0,), (3, 0, 2), (5,), (2, 3)]
    rng = np.random.default_rng(0)
    tree = [jnp.asarray(rng.integers(0, 2, shape), dtype) for shape in shapes]
    save_tree(path, tree, kind="test")
    assert_identical(load_tree(path, tree, kind="test"), tree)
    assert_identical(load_tree(path, shapes_of(tree), kind="test"), tree)


@given(
    st.sampled_from(["bool", "i1", "i4", "i8", "u1", "u4", "u8", "f2", "f4", "f8"]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
    )
)
@settings(max_examples=60, deadline=None)
def test_numpy_arrays_return_as_numpy_arrays_bit_for_bit(array):
    with tempfile.TemporaryDirectory() as folder:
        save_tree(f"{folder}/x.pin", array, kind="test")
        loaded = load_tree(f"{folder}/x.pin", np.empty_like(array), kind="test")
    assert_identical(loaded, array)
    assert loaded.flags.writeable


@pytest.mark.parametrize(
    ("word", "dtype", "words"),
    [
        (np.uint16, "float16", [0x7C01, 0x7E01, 0xFE55, 0x8000]),
        (np.uint16, jnp.bfloat16, [0x7F81, 0x7FC1, 0xFFD5, 0x8000]),
        (np.uint32, "float32", [0x7F800001, 0x7FC12345, 0xFFC00001, 0x80000000, 1]),
        (np.uint64, "float64", [0x7FF0000000000001, 0x7FF8DEADBEEF0001, 1 << 63, 1]),
    ],
)
def test_nan_payloads_signed_zeros_and_subnormals_keep_their_bits(path, word, dtype, words):
    tree = {"numpy": np.array(words, word).view(dtype)}
    if word != np.uint64:
        tree["jax"] = jax.lax.bitcast_convert_type(jnp.array(words, word), dtype)
    save_tree(path, tree, kind="test")
    loaded = load_tree(path, tree, kind="test")
    assert_identical(loaded, tree)
    assert np.asarray(loaded["numpy"]).view(word).tolist() == words


def test_float64_and_int64_in_numpy_survive_without_x64(path):
    assert not jax.config.jax_enable_x64
    tree = (np.array([1 / 3]), np.int64(2**62 + 1), np.float64(0.1), np.array(2**63, np.uint64))
    save_tree(path, tree, kind="test")
    loaded = load_tree(path, tree, kind="test")
    assert_identical(loaded, tree)
    assert type(loaded[1]) is np.int64


def test_float64_jax_arrays_return_under_x64_and_are_refused_without(path):
    jax.config.update("jax_enable_x64", True)
    try:
        tree = jnp.array([1 / 3, 0.1], jnp.float64)
        save_tree(path, tree, kind="test")
        assert_identical(load_tree(path, tree, kind="test"), tree)
    finally:
        jax.config.update("jax_enable_x64", False)
    with pytest.raises(MismatchError, match="jax_enable_x64"):
        load_tree(path, jax.ShapeDtypeStruct((2,), np.float64), kind="test")


@pytest.mark.parametrize("value", [True, False, 0, -5, 2**63 - 1, -(2**63), 0.1, -0.0, 5e-324])
def test_python_scalars_return_as_the_same_python_type(path, value):
    save_tree(path, {"x": value}, kind="test")
    loaded = load_tree(path, {"x": type(value)()}, kind="test")
    assert_identical(loaded, {"x": value})


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_random_keys_return_and_draw_the_same_numbers(path, impl):
    keys = {"one": jax.random.key(7, impl=impl), "many": jax.random.split(jax.random.key(1), 3)}
    keys["old"] = jax.random.PRNGKey(4)
    save_tree(path, keys, kind="test")
    for like in (keys, shapes_of(keys)):
        loaded = load_tree(path, like, kind="test")
        assert_identical(loaded, keys)
        drawn = jax.random.normal(loaded["one"], (4,))
        assert bits(drawn) == bits(jax.random.normal(keys["one"], (4,)))


def test_a_key_of_another_generator_is_a_mismatch(path):
    save_tree(path, jax.random.key(0), kind="test")
    with pytest.raises(MismatchError, match=r"key<rbg>.*key<fry>"):
        load_tree(path, jax.random.key(0, impl="rbg"), kind="test")


@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("value", [1.5, 3])
def test_weak_types_survive_so_that_a_resumed_step_does_not_compile_again(path, value, shape):
    compilations = []

    @jax.jit
    def step(x):
        compilations.append(x)
        return x * 2

    tree = jnp.broadcast_to(jnp.asarray(value), shape)
    step(tree)
    save_tree(path, tree, kind="test")
    for like in (tree, shapes_of(tree)):
        loaded = load_tree(path, like, kind="test")
        assert loaded.weak_type
        assert bits(loaded) == bits(tree)
        step(loaded)
    assert len(compilations) == 1


def test_memory_order_and_byte_order_do_not_matter(path):
    array = np.arange(6.0).reshape(2, 3)
    tree = [np.asfortranarray(array), array[:, ::2], array.astype(">f8")]
    save_tree(path, tree, kind="test")
    loaded = load_tree(path, tree, kind="test")
    for a, e in zip(loaded, [array, array[:, ::2], array], strict=True):
        assert bits(a) == bits(e)


def test_functions_and_static_fields_come_from_the_skeleton(path):
    model = eqx.nn.MLP(2, 1, 4, 2, activation=jax.nn.tanh, key=jax.random.key(0))
    save_tree(path, model, kind="test")
    other = eqx.nn.MLP(2, 1, 4, 2, activation=jax.nn.tanh, key=jax.random.key(1))
    loaded = load_tree(path, other, kind="test")
    x = jnp.ones(2)
    assert loaded.activation is other.activation
    assert bits(loaded(x)) == bits(model(x))
    assert bits(other(x)) != bits(model(x))


def test_a_resumed_training_ends_bit_identical_to_an_unbroken_one(path):
    optimiser = optax.adam(optax.cosine_decay_schedule(1e-2, 40))

    def init(seed):
        key, subkey = jax.random.split(jax.random.key(seed))
        model = eqx.nn.MLP(2, 1, 8, 1, key=subkey)
        return model, optimiser.init(eqx.filter(model, eqx.is_array)), key, 0

    @eqx.filter_jit
    def update(model, opt_state, key):
        key, subkey = jax.random.split(key)
        x = jax.random.normal(subkey, (16, 2))
        grads = eqx.filter_grad(lambda m: jnp.mean((jax.vmap(m)(x) - x[:, :1]) ** 2))(model)
        updates, opt_state = optimiser.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, key

    def run(state, n):
        *rest, step = state
        for _ in range(n):
            rest = update(*rest)
        return *rest, step + n

    unbroken = run(init(0), 20)
    save_tree(path, run(init(0), 8), kind="checkpoint", meta={"seed": 0})
    resumed = run(load_tree(path, init(1), kind="checkpoint"), 12)
    assert_identical(
        eqx.filter(resumed, eqx.is_array_like), eqx.filter(unbroken, eqx.is_array_like)
    )


def test_the_same_content_gives_the_same_bytes(tmp_path, monkeypatch):
    save_tree(tmp_path / "a.pin", TREE, kind="test", meta={"x": 1})
    monkeypatch.setattr(time, "time", lambda: 2e9)
    save_tree(tmp_path / "b.pin", dict(reversed(TREE.items())), kind="test", meta={"x": 1})
    assert (tmp_path / "a.pin").read_bytes() == (tmp_path / "b.pin").read_bytes()


def test_other_tools_can_read_the_file(path):
    save_tree(path, {"w": np.arange(3.0)}, kind="test", meta={"beta": 2.5})
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        arrays = safetensors.numpy.load(archive.read("arrays.safetensors"))
        data = json.loads(archive.read("manifest.json"))
    assert data["meta"] == {"beta": 2.5}
    np.testing.assert_array_equal(arrays["['w']"], [0.0, 1.0, 2.0])


def test_the_manifest_can_be_read_alone(path):
    save_tree(path, TREE, kind="test", meta={"β": (1, math.inf)})
    found = read_manifest(path)
    assert (found.version, found.kind, found.meta) == (1, "test", {"β": (1, math.inf)})
    assert found.arrays == {
        "['flag']": ArraySpec((2,), "bool"),
        "['step']": ArraySpec((), "python.int"),
        "['w']": ArraySpec((3,), "float64"),
    }


@pytest.mark.parametrize(
    "leaf",
    [
        np.array(["a"]),
        np.array([None]),
        np.zeros(2, complex),
        2**63,
        jax.ShapeDtypeStruct((), "f4"),
    ],
)
def test_what_has_no_exact_place_in_the_file_is_refused(path, leaf):
    with pytest.raises(NotStorableError, match=r"\['x'\] must"):
        save_tree(path, {"x": leaf}, kind="test")
    assert not path.exists()


def test_two_leaves_of_one_name_are_refused(path):
    class Same:
        def __init__(self, name):
            self.name = name

        def __lt__(self, other):
            return self.name < other.name

        def __repr__(self):
            return "same"

    with pytest.raises(NotStorableError, match=r"two are called \[same\]"):
        save_tree(path, {Same("a"): 1, Same("b"): 2}, kind="test")


# Skeletons that do not fit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": np.zeros(4)}, r"\['w'\] must be float64\[4\], but the file has float64\[3\]"),
        ({"w": np.zeros(3, "f4")}, r"\['w'\] must be float32\[3\], but the file has float64\[3\]"),
        ({"step": 1.0}, r"\['step'\] must be python.float\[\], but the file has python.int"),
        ({"more": 1}, r"\['more'\] must be python.int\[\], but the file has no such array"),
        ({"w": None}, r"\['w'\] must be absent, but the file has float64\[3\]"),
    ],
)
def test_a_mismatch_names_the_path_the_expected_and_the_found(path, change, message):
    save_tree(path, TREE, kind="test")
    with pytest.raises(MismatchError, match=message):
        load_tree(path, TREE | change, kind="test")


def test_another_kind_is_refused(path):
    save_tree(path, TREE, kind="classifier")
    with pytest.raises(UnknownKindError, match=r"'checkpoint'.*'classifier'"):
        load_tree(path, TREE, kind="checkpoint")


# Plain values as JSON

NUMPY_VALUES = st.sampled_from(
    [
        *(np.float32(0.1), np.float64("nan"), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True)),
        *(np.str_("é"), np.array(["no", "yes"]), np.array(["a", (1, 2), None], object)),
        *(np.array([0.1, math.nan, -math.inf]), np.array(5), np.array([2**64 - 1], np.uint64)),
        *(np.array([["a", "b"]], dtype="<U7"), np.array([True, False]), np.zeros((0, 2))),
    ]
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | NUMPY_VALUES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.sampled_from(["$tuple", "$dict"]), inner, max_size=3)
        | st.dictionaries(st.integers() | st.tuples(st.booleans()), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and same(a.tolist(), b.tolist())
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and str(a) == str(b))
    return a == b


@given(PLAIN)
@settings(max_examples=200, deadline=None)
def test_plain_values_return_from_strict_json_with_their_types(value):
    text = json.dumps(to_json(value), allow_nan=False)
    assert same(from_json(json.loads(text)), value)


class Sneaky(int):
    pass


@pytest.mark.parametrize(
    "value",
    [
        *(len, lambda x: x, np.float32, np.random.default_rng(0), object(), {1, 2}, b"x", 1j),
        *(Sneaky(1), "\ud800", np.array([1j]), np.array(["2020-01-01"], "M8[D]"), jnp.zeros(2)),
    ],
)
def test_what_cannot_be_stored_is_named_with_its_place(value):
    with pytest.raises(NotStorableError, match=r"meta\['params'\]\[1\] must be"):
        to_json({"params": [0, value]}, "meta")


def test_large_arrays_do_not_belong_into_json():
    with pytest.raises(NotStorableError, match="in the tree"):
        to_json(np.zeros(2**26 + 1, np.int8))


def test_endless_nesting_cannot_be_stored():
    endless = []
    endless.append(endless)
    with pytest.raises(NotStorableError, match="nested"):
        to_json(endless)


@pytest.mark.parametrize(
    "data",
    [
        {"$float": "1"},
        {"$float": []},
        {"$tuple": 1},
        {"$dict": [[[1], 2]]},
        {"$dict": 3},
        {"$scalar": ["void", 1]},
        {"$array": ["<U999999999", [2], ["a", "b"]]},
        {"$array": ["float64", [3], [1.0]]},
        {"$array": [1, [1], [1.0]]},
        {"$array": ["int8", [1], [300]]},
        {"$array": ["float64", [-1, -1], [1.0]]},
        {"$import": "os.system"},
    ],
)
def test_json_that_to_json_never_writes_is_damage(data):
    with pytest.raises(DamagedFileError):
        from_json(data)


# Bad files


class Bomb:
    """A pickle that leaves a trace when it is loaded."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("place", ["bare", "zip", "torch", "manifest", "arrays", "member"])
def test_a_pickle_in_disguise_is_refused_and_never_run(path, tmp_path, protocol, place):
    trace = tmp_path / "trace"
    bomb = pickle.dumps(Bomb(trace), protocol=protocol)
    content = {
        "bare": bomb,
        "zip": zip_of([("model.pkl", bomb)]),
        "torch": zip_of([("archive/data.pkl", bomb), ("archive/version", "3")]),
        "manifest": zip_of([("manifest.json", bomb), ("arrays.safetensors", GOOD_ARRAYS)]),
        "arrays": model_file(content=bomb),
        "member": model_file(extra=[("state.pkl", bomb)]),
    }[place]
    path.write_bytes(content)
    error = NotAModelFileError if place in ("bare", "zip", "torch") else DamagedFileError
    with pytest.raises(error) as caught:
        load_tree(path, {"w": np.zeros(3)}, kind="test")
    with pytest.raises(error):
        load(path)
    if place in ("zip", "torch") or (place == "bare" and protocol >= 2):
        assert "a pickle" in str(caught.value)
    assert not trace.exists()


def numpy_bytes(save):
    stream = io.BytesIO()
    save(stream, np.zeros(3))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an empty file"),
        (b"PK", "no zip archive"),
        (os.urandom(7) * 100, "it is"),
        (numpy_bytes(np.save), "NumPy"),
        (numpy_bytes(np.savez), "arr_0.npy"),
        (GOOD_ARRAYS, "no zip archive"),
        (b"prefix" + model_file(), "no zip archive"),
        (model_file(format="other"), "manifest says otherwise"),
        (zip_of([("manifest.json", "[]")]), "manifest says otherwise"),
    ],
)
def test_another_file_is_refused_and_described(path, content, message):
    path.write_bytes(content)
    for call in (read_manifest, load, lambda p: load_tree(p, TREE, kind="test")):
        with pytest.raises(NotAModelFileError, match=message):
            call(path)


def test_a_directory_and_a_pipe_are_refused_and_a_missing_file_is_an_ordinary_error(tmp_path):
    with pytest.raises(NotAModelFileError, match="a directory"):
        load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotAModelFileError, match="not a regular file"):
        load(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.pin")
    with pytest.raises(FileNotFoundError, match="directory"):
        save_tree(tmp_path / "missing" / "model.pin", TREE, kind="test")


@pytest.mark.parametrize("version", [2, 99, 0, "1", 1.0, True, None])
def test_an_unknown_version_is_refused(path, version):
    path.write_bytes(model_file(version=version, content=b"new layout", extra=[("new", "member")]))
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        load_tree(path, TREE, kind="test")


def with_header(header, data=b""):
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return len(text).to_bytes(8, "little") + text + data


W = {"dtype": "F64", "shape": [3], "data_offsets": [0, 24]}
DAMAGED = {
    "header beyond the file": model_file(content=(2**62).to_bytes(8, "little") + b"{}"),
    "header beyond 64 bits": model_file(content=b"\xff" * 8 + b"{}"),
    "data beyond the file": model_file(content=with_header({"['w']": W}, b"\0" * 23)),
    "data after the end": model_file(content=with_header({"['w']": W}, b"\0" * 25)),
    "overflowing shape": model_file(
        content=with_header({"['w']": W | {"shape": [2**40, 2**40]}}, b"\0" * 24)
    ),
    "header no JSON": model_file(content=with_header(b"[" * 1000)),
    "unknown element type": model_file(
        content=with_header({"['w']": W | {"dtype": "F8_E4M3", "shape": [24]}}, b"\0" * 24)
    ),
    "booleans of 2": model_file(
        content=with_header({"['w']": W | {"dtype": "BOOL", "shape": [24]}}, b"\2" * 24),
        arrays={"['w']": {"shape": [24], "dtype": "bool"}},
    ),
    "no arrays": zip_of([("manifest.json", manifest())]),
    "empty arrays": model_file(content=b""),
    "other arrays": model_file(content=safetensors.numpy.save({"x": np.zeros(3)})),
    "other shape": model_file(content=safetensors.numpy.save({"['w']": np.zeros(4)})),
    "other type": model_file(content=safetensors.numpy.save({"['w']": np.zeros(3, "i8")})),
    "unexpected member": model_file(extra=[("readme.txt", "hello")]),
    "path traversal": model_file(extra=[("../../../tmp/evil", "x"), ("/etc/evil", "x")]),
    "duplicate manifest": model_file(extra=[("manifest.json", manifest())]),
    "duplicate arrays": model_file(extra=[("arrays.safetensors", GOOD_ARRAYS)]),
    "compressed": model_file(compression=zipfile.ZIP_DEFLATED),
    "zip bomb": model_file(content=bytes(10**7), compression=zipfile.ZIP_DEFLATED),
    "no JSON": zip_of([("manifest.json", "{"), ("arrays.safetensors", GOOD_ARRAYS)]),
    "no UTF-8": zip_of([("manifest.json", b'"\xff"'), ("arrays.safetensors", GOOD_ARRAYS)]),
    "deep JSON": zip_of([("manifest.json", "[" * 10**6)]),
    "deep meta": model_file(meta={"x": json.loads("[" * 500 + "]" * 500)}),
    "huge JSON": zip_of([("manifest.json", b" " * (2**26 + 1))]),
    "huge integer": zip_of([("manifest.json", '{"format": ' + "9" * 5000 + "}")]),
    "NaN in JSON": model_file(meta={"x": math.nan}),
    "key twice": zip_of([("manifest.json", manifest()[:-1] + ', "kind": "other"}')]),
    "kind no string": model_file(kind=["test"]),
    "meta no mapping": model_file(meta=[1]),
    "meta no mapping but a tag": model_file(meta={"$tuple": []}),
    "meta with unknown tag": model_file(meta={"x": {"$import": "os"}}),
    "library no string": model_file(library=3),
    "arrays no mapping": model_file(arrays=[1]),
    "negative shape": model_file(arrays={"['w']": {"shape": [-3], "dtype": "float64"}}),
    "shape no list": model_file(arrays={"['w']": {"shape": 3, "dtype": "float64"}}),
    "shape missing": model_file(arrays={"['w']": {"dtype": "float64"}}),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_or_hostile_file_is_refused_by_name(path, content):
    path.write_bytes(content)
    before = sorted(path.parent.iterdir())
    with pytest.raises(DamagedFileError, match=r"model\.pin"):
        load_tree(path, {"w": np.zeros(3)}, kind="test")
    assert sorted(path.parent.iterdir()) == before


def test_the_untouched_hand_made_file_loads(path):
    """So that the refusals above are for the reason each of them names."""
    path.write_bytes(model_file())
    assert_identical(load_tree(path, {"w": np.zeros(3)}, kind="test"), {"w": np.arange(3.0)})


def test_random_keys_with_data_of_another_length_are_refused(path):
    data = safetensors.numpy.save({"": np.zeros(5, np.uint32)})
    path.write_bytes(model_file(content=data, arrays={"": {"shape": [], "dtype": "key<fry>"}}))
    with pytest.raises(MismatchError, match=r"key data of shape \(2,\)"):
        load_tree(path, jax.random.key(0), kind="test")


def test_a_truncated_file_does_not_load_as_a_file_that_was_its_data(path):
    save_tree(path, {"w": np.zeros(3)}, kind="test")
    inner = path.read_bytes()
    save_tree(path, {"w": np.frombuffer(inner, np.uint8)}, kind="test")
    outer = path.read_bytes()
    path.write_bytes(outer[: outer.index(inner) + len(inner)])
    with pytest.raises(DamagedFileError):
        load_tree(path, {"w": np.zeros(3)}, kind="test")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "model.pin"
    save_tree(path, TREE, kind="test", meta={"classes": ("a", math.nan), "beta": 25.0})
    return path.read_bytes(), read_manifest(path)


def check_altered(content, sound):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pin")
        path.write_bytes(content)
        try:
            loaded, found = load_tree(path, TREE, kind="test"), read_manifest(path)
        except ModelFileError:
            return False
    assert_identical(loaded, TREE)
    assert same(found.meta, sound[1].meta)
    assert (found.kind, found.arrays) == (sound[1].kind, sound[1].arrays)
    return True


def test_a_file_truncated_at_any_byte_is_refused(sound):
    for length in range(len(sound[0])):
        assert not check_altered(sound[0][:length], sound)


def test_a_flipped_bit_at_any_byte_is_refused_or_changes_nothing(sound):
    for position in range(len(sound[0])):
        altered = bytearray(sound[0])
        altered[position] ^= 1 << position % 8
        check_altered(bytes(altered), sound)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_altered_stretch_is_refused_or_changes_nothing(sound, data):
    start = data.draw(st.integers(0, len(sound[0]) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=4))
    cut = data.draw(st.integers(0, 6))
    check_altered(sound[0][:start] + patch + sound[0][start + cut :], sound)


# Atomic writes


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["fsync", "replace"])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(path, monkeypatch, error, place):
    def fail(*_):
        raise error

    save_tree(path, TREE, kind="test")
    with monkeypatch.context() as patch:
        patch.setattr(_atomic.os, place, fail)
        with pytest.raises(type(error)):
            save_tree(path, {"other": 1}, kind="test")
    assert_identical(load_tree(path, TREE, kind="test"), TREE)
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_stops_midway_leaves_no_file(path, monkeypatch):
    written = []

    def fail(self, info, data):
        if written:
            raise OSError("disk full")
        written.append(write(self, info, data))

    write = zipfile.ZipFile.writestr
    monkeypatch.setattr(zipfile.ZipFile, "writestr", fail)
    with pytest.raises(OSError, match="disk full"):
        save_tree(path, TREE, kind="test")
    assert written
    assert list(path.parent.iterdir()) == []


def test_a_new_file_has_the_permissions_of_an_ordinary_one(path):
    old = os.umask(0o027)
    try:
        save_tree(path, TREE, kind="test")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_is_followed_not_replaced(tmp_path):
    target, link = tmp_path / "step-10.pin", tmp_path / "latest.pin"
    link.symlink_to(target)
    save_tree(link, TREE, kind="test")
    assert link.is_symlink()
    assert_identical(load_tree(target, TREE, kind="test"), TREE)


def test_a_file_is_whole_whenever_its_writer_is_killed(path):
    script = """
        import sys, numpy as np
        from pinfactory.persistence import save_tree
        step = 0
        while True:
            save_tree(sys.argv[1], {"w": np.full(10**6, step)}, kind="test")
            if step == 0:
                print("ready", flush=True)
            step += 1
    """
    like = {"w": np.zeros(10**6, np.int64)}
    for delay in (0.013, 0.041, 0.097):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), str(path)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        values = np.unique(load_tree(path, like, kind="test")["w"])
        assert len(values) == 1


# Models


@register("test.Line")
class Line:
    def __init__(self, *, names=("a", "b"), link=None):
        if len(names) != 2:
            raise ValueError(f"names must be two, but got {names}")
        self.names, self.link = names, link

    def fit(self):
        self.weights_ = jnp.array([1.0, 2.0])
        self.classes_ = np.array(["no", "yes"])
        return self

    def _to_file(self):
        meta = {"params": {"names": self.names, "link": self.link}, "classes": self.classes_}
        return meta, {"weights": self.weights_}

    @classmethod
    def _from_file(cls, meta, load):
        model = cls(**meta["params"])
        model.classes_ = meta["classes"]
        model.weights_ = load({"weights": jax.ShapeDtypeStruct((2,), "float32")})["weights"]
        return model


class Child(Line):
    pass


def test_a_registered_model_returns_with_parameters_and_arrays(path):
    model = Line(names=("x", math.inf)).fit()
    save_model(model, path)
    loaded = load(path)
    assert type(loaded) is Line
    assert loaded.names == ("x", math.inf)
    assert same(loaded.classes_, model.classes_)
    assert bits(loaded.weights_) == bits(model.weights_)


def test_a_parameter_that_is_a_function_is_named(path):
    with pytest.raises(NotStorableError, match=r"meta\['params'\]\['link'\] .* a function"):
        save_model(Line(link=lambda x: x).fit(), path)


def test_a_subclass_is_not_stored_as_its_parent(path):
    with pytest.raises(NotStorableError, match="Child"):
        save_model(Child().fit(), path)


def test_a_kind_belongs_to_one_class():
    with pytest.raises(ValueError, match="each kind must be registered once"):
        register("test.Line")(Child)


@pytest.mark.parametrize("kind", ["os.system", "builtins.eval", "Line", ""])
def test_a_file_cannot_name_a_class(path, kind):
    save_tree(path, {}, kind=kind)
    with pytest.raises(UnknownKindError, match=r"test\.Line"):
        load(path)


@pytest.mark.parametrize(
    ("meta", "tree", "error"),
    [
        ({}, {}, DamagedFileError),
        ({"params": {"evil": 1}, "classes": 0}, {}, DamagedFileError),
        ({"params": {"names": ()}, "classes": 0}, {}, DamagedFileError),
        ({"params": {}, "classes": 0}, {"weights": jnp.zeros(3)}, MismatchError),
    ],
)
def test_a_file_that_does_not_describe_its_kind_is_refused(path, meta, tree, error):
    save_tree(path, tree, kind="test.Line", meta=meta)
    with pytest.raises(error, match=r"model\.pin"):
        load(path)
