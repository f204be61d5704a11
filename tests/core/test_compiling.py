"""Small loops become single kernels, and nothing outside the compiled function changes."""

import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pinfactory
from pinfactory import SpecialistClassifier, SpecialistRegressor
from pinfactory.core import compiling
from pinfactory.core.compiling import (
    bounded,
    compiled,
    compiled_with_kernels,
    even_batch,
    forget_programs,
    library_settings,
    one_kernel,
)


def repeat(x, n):
    def loop(x):
        return jax.lax.fori_loop(0, n, lambda _, x: jnp.tanh(x @ x) + x, x)

    return one_kernel(loop)(x)


def test_a_marked_loop_is_one_call_with_the_loop_inside():
    x, n = jnp.eye(4), jnp.asarray(3)
    program = jax.jit(repeat).lower(x, n).compile().as_text()
    entry = program[program.index("ENTRY") :]
    if jax.default_backend() != "cpu":
        pytest.skip("only the compiler for processors makes kernels of loops")
    assert re.search(r"call\(.*xla_cpu_small_call=\"true\"", entry)
    assert " while(" not in entry
    expected = x
    for _ in range(3):
        expected = jnp.tanh(expected @ expected) + expected
    assert jnp.allclose(compiled_with_kernels(repeat)(x, n), expected, rtol=1e-6)


@pytest.mark.parametrize("step", [jnp.sort, lambda x: x.at[jnp.asarray([3, 0])].add(x[:2])])
def test_a_loop_with_more_than_arithmetic_is_left_as_it_is(step):
    def often(x):
        return one_kernel(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: step(x), x))(x)

    x = jnp.arange(4.0)[::-1]
    assert "inlineable" not in jax.jit(often).lower(x).as_text()
    assert jnp.array_equal(often(x), step(step(step(x))))


def test_an_import_leaves_the_environment_of_the_process_alone():
    script = (
        "import os; b = dict(os.environ); import pinfactory.core.training; assert b == os.environ"
    )
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_all_functions_together_keep_a_few_programs_only(monkeypatch):
    monkeypatch.setattr(compiling, "_bounded", [])
    monkeypatch.setattr(compiling, "MOST_PROGRAMS", 3)
    counts = []

    @compiled
    def double(x):
        counts.append(len(x))
        return 2 * x

    @bounded
    @jax.jit
    def triple(x):
        counts.append(-len(x))
        return 3 * x

    for n in (1, 2, 1, 2):
        assert double(jnp.ones(n)).sum() == 2 * n
        assert triple(jnp.ones(1)).sum() == 3
        forget_programs()
    assert counts == [1, -1, 2]
    with library_settings():
        double(jnp.ones(3))
    # All are gone; what is asked again is compiled again.
    assert double(jnp.ones(3)).sum() == 6
    assert triple(jnp.ones(1)).sum() == 3
    assert counts == [1, -1, 2, 3, 3, -1]


def test_every_compiled_function_of_the_library_is_bounded():
    """JAX keeps the programs of one that is not for ever, one for each shape of its arguments."""
    package = Path(pinfactory.__file__).parent
    decorator = re.compile(r"^(.*)\n *@(?:jax\.jit|eqx\.filter_jit)$", re.MULTILINE)
    call = re.compile(r"(\S*)\b(?:jax\.jit|eqx\.filter_jit)\(")
    files = {
        str(path.relative_to(package)): path.read_text(encoding="utf-8")
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] != "experiments"  # whose processes end
    }
    del files["core/compiling.py"]
    found = [(file, b.strip()) for file, text in files.items() for b in decorator.findall(text)]
    assert len(found) > 5  # most are compiled by `compiled` or `compiled_fully`
    assert [file for file, before in found if before != "@bounded"] == []
    called = {file for file, text in files.items() for b in call.findall(text) if b != "bounded("}
    # Of a key and a number; and one program for each function of a sweep.
    assert called == {"core/hierarchy.py", "sweep/replicas.py"}


def test_a_process_forked_after_a_fit_gets_an_error_instead_of_waiting_for_ever():
    script = """
import os
from pinfactory import SpecialistMixture
model = SpecialistMixture(1).fit([[0.0], [1.0], [2.0]])
if os.fork() == 0:
    try:
        model.predict([[0.0]])
    except RuntimeError as error:
        os._exit(7 if "get_context('spawn')" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=120)


@pytest.mark.parametrize(
    ("flags", "effort"), [("", 1), ("--xla_backend_optimization_level=3", None)]
)
def test_an_effort_of_the_compiler_that_the_process_has_chosen_stands(monkeypatch, flags, effort):
    asked = []

    def jit(function, **settings):
        asked.append(settings["compiler_options"])
        return function

    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(compiling.eqx, "filter_jit", jit)
    monkeypatch.setattr(compiling, "bounded", lambda function: function)
    compiled(jnp.sin)
    assert [options.get("xla_backend_optimization_level") for options in asked] == [effort]


@pytest.mark.parametrize("learner", [SpecialistClassifier, SpecialistRegressor])
def test_tables_of_other_shapes_compile_nothing_that_is_not_bounded(learner):
    for function in compiling._bounded:
        function.clear_cache()
    client = jax.devices()[0].client
    # Held here, what others have compiled is not freed meanwhile: that would hide growth.
    others = client.live_executables()

    def not_bounded():
        gc.collect()
        n_new = len(client.live_executables()) - len(others)
        return n_new - sum(function._cache_size() for function in compiling._bounded)

    found = []
    for n_features, n_experts in ((2, 2), (4, 5)):
        x = np.random.default_rng(0).normal(size=(70, n_features))
        committee = learner(n_experts, max_iter=5, random_state=0).fit(x, x[:, 0] > 0)
        committee.predict(x)
        found.append(not_bounded())
    # The first has compiled what both need.
    first, second = found
    assert second <= first


@pytest.mark.parametrize(
    ("n", "most", "size"), [(2000, 488, 400), (7, 5, 1), (7, 9, 7), (12, 6, 6), (4, 0, 1)]
)
def test_batches_of_a_map_have_one_size(n, most, size):
    assert even_batch(n, most) == size
