"""Models of registered classes."""

import math
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from file_contents import bits, same

from pinfactory.networks import reserve
from pinfactory.persistence import (
    DamagedFileError,
    MismatchError,
    NotStorableError,
    UnknownKindError,
    check_scale,
    load,
    register,
    save_model,
    save_tree,
    set_attributes,
)


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


@register("test.Wide")
class Wide:
    """A model whose parts are as many and as large as its file says."""

    _may_be_minus_infinity = ("['log']",)

    def __init__(self, sizes=(3,), weights=(0.5,), log=(0.0,)):
        self.sizes, self.weights, self.log = sizes, weights, log

    def _to_file(self):
        return {"sizes": self.sizes, "plain": {"slope_": 1.0}}, self._tree()

    def _tree(self):
        return {"weights": np.float32(self.weights), "log": np.float32(self.log)}

    @classmethod
    def _from_file(cls, meta, load):
        model = cls()
        set_attributes(model, meta["plain"], ("slope_", "feature_names_in_"))
        for size in meta["sizes"]:
            reserve(size, size)
            np.ones((size, size))
        model.weights = load(model._tree())["weights"]
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


def test_what_the_class_raises_for_a_damaged_file_is_a_documented_error(path):
    for sizes in (["a"], [-1], None, [None], [10**30]):
        meta = {"sizes": sizes, "plain": {"slope_": 1.0}}
        save_tree(path, Wide()._tree(), kind="test.Wide", meta=meta)
        with pytest.raises(DamagedFileError, match=r"model\.pin must describe a 'test\.Wide'"):
            load(path)


@pytest.mark.parametrize("sizes", [(20_000,), (6 * 10**7,)])
def test_a_small_file_cannot_ask_for_large_arrays(path, sizes):
    save_model(Wide(sizes), path)
    tracemalloc.start()
    with pytest.raises(DamagedFileError, match="more than the limit allows"):
        load(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**28


def test_a_small_file_cannot_ask_for_very_many_arrays(path):
    save_model(Wide((1,) * 5000), path)
    with pytest.raises(DamagedFileError, match="more than the limit allows"):
        load(path)


def test_a_large_file_may_ask_for_large_arrays(path):
    save_model(model := Wide((600,), weights=np.ones(100_000)), path)
    with pytest.raises(MismatchError, match=r"float32\[100000\]"):
        load(path)
    save_model(Wide((600,)), path)
    with pytest.raises(DamagedFileError, match="more than the limit allows"):
        load(path)
    assert model.sizes == (600,)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e30])
def test_weights_that_no_training_ends_with_are_refused(path, number):
    with pytest.raises(NotStorableError, match=r"\['weights'\] must hold finite numbers"):
        save_model(Wide(weights=(number,)), path)
    assert not path.exists()
    save_tree(path, Wide(weights=(number,))._tree(), kind="test.Wide", meta=Wide()._to_file()[0])
    with pytest.raises(DamagedFileError, match=r"\['weights'\] must hold finite numbers"):
        load(path)


def test_where_a_class_says_so_an_array_may_hold_minus_infinity(path):
    save_model(Wide(log=(-math.inf,)), path)
    assert isinstance(load(path), Wide)
    with pytest.raises(NotStorableError, match=r"\['log'\]"):
        save_model(Wide(log=(math.inf,)), path)


@pytest.mark.parametrize(
    "plain", [{}, {"slope_": 1, "predict": 2}, {"__class__": 1, "slope_": 1}, 5, None, ["slope_"]]
)
def test_only_declared_attributes_are_set_and_none_is_missing(path, plain):
    save_tree(path, Wide()._tree(), kind="test.Wide", meta={"sizes": (), "plain": plain})
    with pytest.raises(DamagedFileError, match=r"must be \['feature_names_in_', 'slope_'\]|slope_"):
        load(path)


@pytest.mark.parametrize(
    ("mean", "scale"),
    [
        ([0.0, 1.0], [1.0]),
        ([math.nan], [1.0]),
        ([0.0], [math.inf]),
        ([0.0], [0.0]),
        ([0.0], [-1.0]),
        (["a"], ["b"]),
        (0.0, 1.0),
        (None, None),
    ],
)
def test_scales_that_cannot_standardise_are_refused(mean, scale):
    check_scale(np.array([0.0, -5.0]), np.array([1.0, 1e-30]))
    with pytest.raises(DamagedFileError, match="above zero"):
        check_scale(mean, scale)
