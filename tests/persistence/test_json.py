"""Plain values return from strict JSON with their types."""

import datetime
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from file_contents import same
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfactory.persistence import (
    DamagedFileError,
    NotStorableError,
    from_json,
    to_json,
)

NUMPY_VALUES = st.sampled_from(
    [
        *(np.float32(0.1), np.float64("nan"), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True)),
        *(np.str_("é"), np.array(["no", "yes"]), np.array(["a", (1, 2), None], object)),
        *(np.array([0.1, math.nan, -math.inf]), np.array(5), np.array([2**64 - 1], np.uint64)),
        *(np.array(["2020-01-01", "NaT"], "M8[D]"), np.array([3], ">m8[25s]").astype("m8[25s]")),
        *(np.datetime64("2020-01-01T10", "ns"), np.timedelta64(-5, "h"), np.datetime64("NaT", "s")),
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
        *(Sneaky(1), "\ud800", np.array([1j]), datetime.date(2020, 1, 1), jnp.zeros(2)),
    ],
)
def test_what_cannot_be_stored_is_named_with_its_place(value):
    with pytest.raises(NotStorableError, match=r"meta\['params'\]\[1\] must be"):
        to_json({"params": [0, value]}, "meta")


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (np.random.RandomState(0), r"set_params\(random_state=0\)"),
        (np.random.default_rng(0), r"set_params\(random_state=0\)"),
        (np.array([datetime.date(2020, 1, 1)], object), "datetime64"),
    ],
)
def test_what_to_do_instead_is_said(value, advice):
    with pytest.raises(NotStorableError, match=advice):
        to_json(value)


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
        {"$array": ["datetime64[x]", [1], [1]]},
        {"$array": ["datetime64[D]", [1], ["a"]]},
        {"$array": ["datetime64[99999999999s]", [1], [1]]},
        {"$import": "os.system"},
    ],
)
def test_json_that_to_json_never_writes_is_damage(data):
    with pytest.raises(DamagedFileError):
        from_json(data)
