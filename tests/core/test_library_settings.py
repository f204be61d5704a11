"""JAX has its own settings back after a learner has computed; programs are kept on disk."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np

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
    import jax, sys
    from pinfactory.core import compiling
    {first}
    with compiling.library_settings():
        jax.jit(lambda x: jax.numpy.linalg.svd(x)[0] @ x)(jax.numpy.eye(30))
    print(jax.config.jax_compilation_cache_dir)
"""


def run(first="", **variables):
    own = {"JAX_COMPILATION_CACHE_DIR", compiling.CACHE_VARIABLE}
    kept = {k: v for k, v in os.environ.items() if k not in own}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT).format(first=first)]
    process = subprocess.run(
        command, check=True, capture_output=True, text=True, env=kept | variables
    )
    return process.stdout.strip()


def test_programs_are_kept_in_the_users_cache_and_shared_by_processes(tmp_path):
    all_programs = "compiling._SHORTEST_SECONDS = 0.0"
    folder = run(all_programs, XDG_CACHE_HOME=str(tmp_path))
    assert folder.startswith(str(tmp_path / "pinfactory"))
    programs = sorted(os.listdir(folder))
    assert programs
    run(all_programs, XDG_CACHE_HOME=str(tmp_path))
    assert [f for f in sorted(os.listdir(folder)) if f.endswith("-cache")] == [
        f for f in programs if f.endswith("-cache")
    ]


def test_the_cache_can_be_elsewhere_or_off_and_a_choice_made_before_stands(tmp_path):
    assert run(**{compiling.CACHE_VARIABLE: "off"}) == "None"
    assert run(**{compiling.CACHE_VARIABLE: str(tmp_path / "here")}) == str(tmp_path / "here")
    first = f"jax.config.update('jax_compilation_cache_dir', {str(tmp_path)!r})"
    assert run(first) == str(tmp_path)


def test_a_home_that_cannot_be_written_to_does_not_matter(tmp_path):
    file = tmp_path / "file"
    file.write_text("no folder")
    assert run(XDG_CACHE_HOME=str(file)) == "None"


def test_the_oldest_programs_go_when_room_is_short(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "_MOST_BYTES", 25)
    for age, name in enumerate("cab"):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (age, age))
    compiling._prune(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
