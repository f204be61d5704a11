"""Laws that hold for every learner of the library."""

import copy
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
from sklearn.base import clone

from facades import FACADES, N_EXPERTS, assert_possible
from pinfactory import SpecialistMixture
from pinfactory.baselines import MAML
from pinfactory.callbacks import Callback

# All laws of one learner come one after the other: few of its programs are compiled twice.
every = pytest.mark.parametrize("name", FACADES, scope="module")
_fitted = {}


def fitted(name):
    """Return one trained learner of a kind, trained once for all tests."""
    if name not in _fitted:
        _fitted[name] = FACADES[name].fit(FACADES[name].make())
    return _fitted[name]


@every
def test_settings_can_be_read_shown_and_used_again(name):
    learner = FACADES[name].make(beta_expert=7.5)
    assert learner.get_params()["beta_expert"] == 7.5
    assert learner.get_params()["n_experts"] == N_EXPERTS
    assert repr(learner).startswith(f"{name}(")
    assert "beta_expert=7.5" in repr(learner)
    assert repr(clone(learner)) == repr(learner)
    assert learner.set_params(beta_expert=8.5).get_params()["beta_expert"] == 8.5


@every
def test_information_and_responsibilities_are_possible(name):
    assert_possible(fitted(name), FACADES[name])


# Prices at which no division can pay, and at which a search takes many iterations.
@pytest.mark.filterwarnings("ignore:`beta_selector`=", "ignore:The objective still rose")
@pytest.mark.parametrize("beta_selector", [1e-6, 1e6])
@pytest.mark.parametrize("beta_expert", [1e-6, 1e6])
@every
def test_they_are_with_extreme_resources_too(name, beta_selector, beta_expert):
    learner = FACADES[name].make(beta_selector=beta_selector, beta_expert=beta_expert)
    assert_possible(FACADES[name].fit(learner), FACADES[name])


@every
def test_the_same_seed_gives_the_same_learner(name):
    facade = FACADES[name]
    again = facade.fit(facade.make())
    np.testing.assert_array_equal(facade.answer(again), facade.answer(fitted(name)))


@every
def test_the_same_seed_gives_the_same_learner_in_threads_side_by_side(name):
    facade, learner = FACADES[name], fitted(name)
    with ThreadPoolExecutor(3) as threads:
        trained = list(threads.map(lambda _: facade.fit(facade.make()), range(3)))
        answers = list(threads.map(facade.answer, trained))
    for answer in answers:
        np.testing.assert_array_equal(answer, facade.answer(learner))


ANSWERS = """
import sys, warnings
import numpy as np
from facades import FACADES
warnings.simplefilter("ignore")
np.savez(sys.argv[1], **{n: f.answer(f.fit(f.make())) for n, f in FACADES.items()})
"""


@pytest.mark.slow
def test_the_same_seed_gives_the_same_learners_in_other_processes_with_any_number_of_threads(
    tmp_path,
):
    found = []
    for threads in ("1", "4"):
        environment = os.environ | dict.fromkeys(("NPROC", "OPENBLAS_NUM_THREADS"), threads)
        path = tmp_path / f"{threads}.npz"
        command = [sys.executable, "-c", ANSWERS, str(path)]
        subprocess.run(command, env=environment, cwd=Path(__file__).parent, check=True)
        found.append(dict(np.load(path)))
    for name, one, other in zip(FACADES, *(f.values() for f in found), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)


def asked_in_a_fork(facade, learner):
    """Ask in a forked process; return whether all was refused there, and nothing hung."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    signal.alarm(60)
    asks = [facade.answer, facade.responsibilities, copy.deepcopy]
    asks.append(lambda _: facade.fit(facade.make()))
    if isinstance(learner, SpecialistMixture):
        asks.append(lambda mixture: mixture.sample())
    try:
        for ask in asks:
            with pytest.raises(RuntimeError, match="get_context"):
                ask(learner)
        os._exit(7)
    finally:
        os._exit(1)


@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning", "ignore:.*fork:DeprecationWarning")
@every
def test_a_forked_process_gets_an_error_instead_of_waiting_for_ever(name):
    assert asked_in_a_fork(FACADES[name], fitted(name))


@pytest.mark.parametrize(
    "name", [name for name, f in FACADES.items() if f.is_storable], scope="module"
)
def test_a_file_gives_the_same_answers(name, tmp_path):
    facade, path = FACADES[name], tmp_path / "model.pin"
    fitted(name).save(path)
    loaded = type(fitted(name)).load(path)
    np.testing.assert_array_equal(facade.answer(loaded), facade.answer(fitted(name)))
    with pytest.raises(ValueError, match=f"must hold a MAML, but got {name}"):
        MAML.load(path)
    np.testing.assert_array_equal(
        loaded.information_.responsibility, fitted(name).information_.responsibility
    )


class Count(Callback):
    def __init__(self):
        self.chunks = 0

    def chunk(self, progress, run):
        self.chunks += 1


@every
def test_callbacks_are_one_several_or_none(name):
    facade, one, two = FACADES[name], Count(), Count()
    facade.fit(facade.make(), callbacks=one)
    facade.fit(facade.make(), callbacks=[one, two])
    facade.fit(facade.make(), callbacks=None)
    assert one.chunks == 2 * two.chunks > 0
    with pytest.raises(TypeError, match="allbacks"):
        facade.fit(facade.make(), callbacks=[3])


@every
def test_a_checkpoint_ends_where_an_unbroken_training_does_and_refuses_others(name, tmp_path):
    facade, path = FACADES[name], tmp_path / "run.pin"
    facade.fit(facade.make(), checkpoint=path)
    resumed = facade.fit(facade.make(), checkpoint=path)
    np.testing.assert_array_equal(facade.answer(resumed), facade.answer(fitted(name)))
    with pytest.raises(ValueError, match="beta_expert"):
        facade.fit(facade.make(beta_expert=9.0), checkpoint=path)
    with pytest.raises(ValueError, match=facade.seed):
        facade.fit(facade.make(**{facade.seed: 1}), checkpoint=path)


@every
def test_a_process_may_have_settings_of_its_own(name):
    facade, expected = FACADES[name], FACADES[name].answer(fitted(name))
    with jax.enable_x64(True), jax.debug_nans(True), jax.numpy_rank_promotion("raise"):
        learner = facade.fit(facade.make())
        answer = facade.answer(learner)
        assert learner.information_.selector >= 0.0
        # What was learned elsewhere answers here, too.
        np.testing.assert_allclose(facade.answer(fitted(name)), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)
