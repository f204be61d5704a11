"""JAX has its own settings back after a learner has computed; programs are kept on disk."""

import os
import subprocess
import sys
import textwrap
import time

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
        (tmp_path / f"{name}-cache").write_bytes(bytes(10))
        os.utime(tmp_path / f"{name}-cache", (age, age))
    compiling._prune(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["a-cache", "b-cache"]


def test_programs_that_another_process_deletes_meanwhile_do_not_matter(tmp_path, monkeypatch):
    (tmp_path / "gone-cache").symlink_to(tmp_path / "nowhere")  # listed, but no file
    (tmp_path / "kept-cache").write_bytes(bytes(10))
    compiling._prune(tmp_path)
    compiling._drop_damaged(tmp_path)
    assert (tmp_path / "kept-cache").exists()
    # Others are gone when they are to be deleted.
    (tmp_path / "kept-cache").unlink()
    monkeypatch.setattr(compiling, "_programs", lambda folder: [(1.0, 10, folder / "kept-cache")])
    monkeypatch.setattr(compiling, "_MOST_BYTES", 0)
    compiling._prune(tmp_path)
    (tmp_path / "checked").unlink()
    monkeypatch.setattr(compiling, "_MOST_SECONDS_BACK", 1e12)
    compiling._drop_damaged(tmp_path)


def test_a_damaged_program_is_not_kept_for_ever(tmp_path):
    code = """
        import jax, warnings
        from pinfactory.core import compiling
        warnings.simplefilter("error")
        with compiling.library_settings():
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
            print(jax.jit(lambda x: x @ x + 1)(jax.numpy.ones((3, 3)))[0, 0])
    """

    def run() -> str:
        variables = {"JAX_PLATFORMS": "cpu", compiling.CACHE_VARIABLE: str(tmp_path)}
        command = [sys.executable, "-c", textwrap.dedent(code)]
        told = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
        return told.stdout + told.stderr[-300:]

    def written(minutes: float) -> dict[str, bytes]:
        """Return the programs; let them be written some minutes ago, and looked at before that."""
        files = list(tmp_path.glob("*-cache"))
        now = time.time()
        os.utime(tmp_path / "checked", (now - 60 * minutes - 60,) * 2)
        for file in files:
            os.utime(file, (now - 60 * minutes,) * 2)
        return {file.name: file.read_bytes() for file in files}

    assert run() == "4.0\n"
    whole = written(10)
    assert whole
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content[: len(content) // 2])
    written(5)
    assert run() == "4.0\n"
    assert {name: len(content) for name, content in written(5).items()} == {
        name: pytest.approx(len(content), rel=0.1) for name, content in whole.items()
    }
    (tmp_path / "new-cache").write_bytes(b"")  # another process may be writing it
    compiling._drop_damaged(tmp_path)
    assert (tmp_path / "new-cache").exists()
