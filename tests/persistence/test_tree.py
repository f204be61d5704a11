"""Pytrees return from files bit for bit, and skeletons that do not fit are refused."""

import tempfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from file_contents import TREE, assert_identical, bits, shapes_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pinfactory.persistence import (
    MismatchError,
    NotStorableError,
    UnknownKindError,
    load_tree,
    save_tree,
)


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
