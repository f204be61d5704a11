"""JAX has its own settings back after a learner has computed; programs are kept on disk."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.core import compiling


def test_settings_hold_inside_and_are_given_back():
    before = jnp.asarray(np.ones(2)).dtype
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        with compiling.library_settings():
            assert jnp.asarray(np.ones(2)).dtype == jnp.float32
            assert (jnp.ones((3, 2)) + jnp.ones(2)).shape == (3, 2)
        assert jnp.asarray(np.ones(2)).dtype == jnp.float64
        assert jax.config.jax_numpy_rank_promotion == "raise"
    assert jnp.asarray(np.ones(2)).dtype == before


SCRIPT = """
    import jax
    from pinfactory.core import compiling

    compiling._SHORTEST_SECONDS = 0.0
    with compiling.library_settings():
        jax.jit(lambda x: jax.numpy.linalg.svd(x)[0] @ x)(jax.numpy.eye(30))
    print(jax.config.jax_compilation_cache_dir)
"""


def test_programs_are_kept_in_the_users_cache_and_shared_by_processes(tmp_path):
    own = {"JAX_COMPILATION_CACHE_DIR", compiling.CACHE_VARIABLE}
    variables = {k: v for k, v in os.environ.items() if k not in own}

    def kept():
        process = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SCRIPT)],
            check=True,
            capture_output=True,
            text=True,
            env=variables | {"XDG_CACHE_HOME": str(tmp_path)},
        )
        folder = process.stdout.strip()
        assert folder.startswith(str(tmp_path / "pinfactory"))
        return sorted(file for file in os.listdir(folder) if file.endswith("-cache"))

    programs = kept()
    assert programs
    assert kept() == programs


@pytest.fixture
def folder_for(monkeypatch):
    """Return the folder of a new process, asked in this one with its environment and settings."""
    before = jax.config.values["jax_compilation_cache_dir"]

    def ask(chosen=None, **variables):
        for name in ("XDG_CACHE_HOME", compiling.CACHE_VARIABLE):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        jax.config.update("jax_compilation_cache_dir", chosen)
        compiling.enable_compilation_cache.__wrapped__()
        return jax.config.values["jax_compilation_cache_dir"]

    yield ask
    jax.config.update("jax_compilation_cache_dir", before)


def test_the_cache_can_be_elsewhere_or_off_and_a_choice_made_before_stands(folder_for, tmp_path):
    here, chosen = str(tmp_path / "here"), str(tmp_path / "chosen")
    assert folder_for(**{compiling.CACHE_VARIABLE: "off"}) is None
    assert folder_for(**{compiling.CACHE_VARIABLE: here}) == here
    assert folder_for(chosen, **{compiling.CACHE_VARIABLE: here}) == chosen


def test_a_home_that_cannot_be_written_to_does_not_matter(folder_for, tmp_path):
    file = tmp_path / "file"
    file.write_text("no folder")
    assert folder_for(XDG_CACHE_HOME=str(file)) is None


def test_the_oldest_programs_go_when_room_is_short(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "_MOST_BYTES", 25)
    for age, name in enumerate("cab"):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (age, age))
    compiling._prune(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
