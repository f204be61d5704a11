"""What checkpoints and files know of a setting tells two settings apart, in every process."""

import subprocess
import sys
import textwrap
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory import SpecialistClassifier
from pinfactory.core.constraints import Scheduled
from pinfactory.persistence import MismatchError, described
from pinfactory.rl.meta import double_pendulum_tasks
from pinfactory.rl.meta.families import identify


def layer(width, depth=1):
    return width * depth


def of_width(width):
    return lambda depth: width * depth


class Body:
    """An object that says nothing of itself but its address."""

    def turn(self):
        return 0


def with_numbers(*changed):
    numbers = np.linspace(0.0, 1.0, 5000)
    numbers[2500] += sum(changed)
    return numbers


LARGE = [
    lambda end: Scheduled(1.0, end, 300, "linear"),
    lambda end: partial(layer, end),
    lambda end: partial(layer, depth=end),
    lambda end: {"layers": [of_width(end)]},
    lambda end: lambda width: width + end,
    with_numbers,
    lambda end: jnp.asarray([1.0, end]),
    lambda end: jax.random.key(end),
    lambda end: np.random.RandomState(end),
    lambda end: np.random.default_rng(end),
    lambda end: (end, {end}),
]


@pytest.mark.parametrize("make", LARGE)
def test_equal_values_are_described_alike_and_others_are_not(make):
    assert described(make(5)) == described(make(5))
    assert described(make(5)) != described(make(50))


def test_functions_without_names_are_told_apart_by_what_they_do():
    assert described(lambda x: x + 1) != described(lambda x: x + 2)
    assert described(lambda x: x.real) != described(lambda x: x.imag)


def test_no_address_is_part_of_a_description():
    def around():
        return around()

    for value in (layer, Body, Body(), Body().turn, around, [Body()], lambda: 0, object()):
        assert "0x" not in described(value)
    assert described(layer) == f"{__name__}.layer"
    assert described(np.float64(2.0)) == described(2.0)


def test_a_checkpoint_of_another_schedule_is_refused(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 2))

    def fit(end):
        beta = Scheduled(1.0, end, 300, "linear")
        learner = SpecialistClassifier(2, beta_selector=beta, max_iter=20, random_state=0)
        return learner.fit(X, X[:, 0] > 0, checkpoint=tmp_path / "run.pin")

    fit(5.0)
    fit(5.0)
    with pytest.raises(MismatchError, match="beta_selector"):
        fit(50.0)


def test_families_are_told_apart_by_their_environment():
    short, long = (identify(double_pendulum_tasks(max_steps=n)) for n in (200, 1000))
    assert short != long
    assert short == identify(double_pendulum_tasks(max_steps=200))


@pytest.mark.slow
def test_an_agent_of_a_function_that_makes_environments_goes_on_in_another_process(tmp_path):
    (tmp_path / "maker.py").write_text(
        textwrap.dedent("""
            import gymnasium
            from functools import partial
            from pinfactory import SpecialistAgent

            def made(**settings):
                return gymnasium.make("CartPole-v1", **settings)

            SMALL = {"n_envs": 2, "n_steps": 8, "batch_size": 16, "n_epochs": 1}

            def steps(env, path, n):
                return SpecialistAgent(env, 2, **SMALL).learn(n, checkpoint=path).num_timesteps

            ENVS = (lambda: gymnasium.make("CartPole-v1"), partial(made, sutton_barto_reward=True))
            for number, env in enumerate(ENVS):
                steps(env, f"{number}.pin", 32)
        """)
    )
    again = textwrap.dedent("""
        import maker  # goes on, as in a process that was killed
        from pinfactory.persistence import MismatchError
        assert maker.steps(maker.ENVS[0], "0.pin", 64) == 64
        try:
            maker.steps(maker.ENVS[0], "1.pin", 32)
        except MismatchError as error:
            print(error)
    """)
    for script in ("import maker", again):
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert "belongs to environment" in done.stdout
