"""Models that were made with a user's function: the file knows its name and nothing more."""

import re
import sys

import jax
import numpy as np
import pytest
from file_contents import rewritten_meta

import pinfactory
from pinfactory import SpecialistRegressor, networks
from pinfactory.meta import MetaSpecialistRegressor
from pinfactory.meta.experts import HeadedNetwork
from pinfactory.meta.tasks import Sinusoids
from pinfactory.persistence import MissingFunctionError

X = np.random.default_rng(0).normal(size=(60, 2))
LINE = np.linspace(-3.0, 3.0, 8)[:, None]


def narrow(inputs, outputs, *, key):
    return networks.mlp(inputs, outputs, (3,), networks.tanh, key=key)


def same_but_named_otherwise(inputs, outputs, *, key):
    return narrow(inputs, outputs, key=key)


def wide(inputs, outputs, *, key):
    return networks.mlp(inputs, outputs, (5,), networks.tanh, key=key)


def headed(input_shape, outputs, *, key):
    features = networks.mlp(input_shape[0], 6, (), networks.tanh, key=key)
    return HeadedNetwork(features, networks.linear(6, outputs, key=jax.random.fold_in(key, 1)))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The file of a regressor whose experts come from `narrow`."""
    path = tmp_path_factory.mktemp("models") / "model.pin"
    model = SpecialistRegressor(2, expert=narrow, selector=wide, max_iter=20, random_state=0)
    model.fit(X, X[:, 0]).save(path)
    np.save(path.with_suffix(".npy"), model.predict(X))
    return path


def test_a_function_that_is_given_again_makes_the_same_model(path):
    loaded = pinfactory.load(path, expert=narrow, selector=wide)
    np.testing.assert_array_equal(loaded.predict(X), np.load(path.with_suffix(".npy")))
    assert loaded.expert is narrow
    assert loaded.get_params()["selector"] is wide


def test_a_meta_learner_is_saved_as_well(tmp_path):
    learner = MetaSpecialistRegressor(2, expert=headed, max_iter=5, batch_size=2, random_state=0)
    learner.fit(Sinusoids(shots=4)).save(tmp_path / "learner.pin")
    loaded = pinfactory.load(tmp_path / "learner.pin", expert=headed)
    answers = [each.adapt(LINE, LINE[:, 0]).predict(LINE) for each in (learner, loaded)]
    np.testing.assert_array_equal(*answers)


def test_without_it_the_error_says_what_to_do(path):
    message = f"expert={re.escape(__name__)}.narrow.*load\\(path, expert="
    with pytest.raises(MissingFunctionError, match=message):
        pinfactory.load(path)
    with pytest.raises(MissingFunctionError, match="selector"):
        pinfactory.load(path, expert=narrow)


def test_another_function_is_noticed_by_its_name_and_by_its_arrays(path):
    with pytest.warns(UserWarning, match=r"narrow.*same_but_named_otherwise"):
        loaded = pinfactory.load(path, expert=same_but_named_otherwise, selector=wide)
    np.testing.assert_array_equal(loaded.predict(X), np.load(path.with_suffix(".npy")))
    with pytest.warns(UserWarning, match="wide"), pytest.raises(ValueError, match="does not fit"):
        pinfactory.load(path, expert=wide, selector=wide)


@pytest.mark.parametrize("given", [{"max_iter": narrow}, {"expert": 3, "selector": wide}])
def test_only_functions_for_settings_that_are_functions_are_taken(path, given):
    with pytest.raises(ValueError, match="must be"):
        pinfactory.load(path, **given)


def test_a_name_in_a_file_imports_nothing(path, tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    altered = tmp_path / "altered.pin"
    rewritten_meta(path, altered, "test_functions.narrow", "evil_module.run")
    with pytest.raises(MissingFunctionError, match=r"evil_module\.run"):
        pinfactory.load(altered)
    with pytest.warns(UserWarning, match=r"evil_module\.run"):
        pinfactory.load(altered, expert=narrow, selector=wide)
    assert "evil_module" not in sys.modules


def test_a_checkpoint_knows_a_function_by_its_name(tmp_path):
    """The address in the `repr` of a function would make every process a stranger."""
    settings = {"expert": narrow, "max_iter": 20, "random_state": 0}
    checkpoint = tmp_path / "run.pin"
    SpecialistRegressor(2, **settings).fit(X, X[:, 0], checkpoint=checkpoint)
    with pytest.raises(ValueError, match=r"narrow.*wide"):
        SpecialistRegressor(2, **(settings | {"expert": wide})).fit(
            X, X[:, 0], checkpoint=checkpoint
        )
