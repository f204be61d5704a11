"""What `import pinfactory` gives, and what it leaves alone."""

import os
import pkgutil
import subprocess
import sys
import textwrap
from importlib import import_module
from importlib.metadata import version

import pytest

import pinfactory


def run(script: str) -> str:
    """Run a script without what scikit-learn and Gymnasium have set in this process."""
    command = [sys.executable, "-c", textwrap.dedent(script)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("KMP_", "PYGAME_"))}
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout


def test_all_public_names_exist_and_complete():
    assert set(pinfactory.__all__) <= set(dir(pinfactory))
    for name in pinfactory.__all__:
        assert getattr(pinfactory, name) is not None
    assert pinfactory.__version__ == version("pinfactory")
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        pinfactory.Nonsense  # noqa: B018


def test_a_public_class_has_a_name_of_its_own():
    """Modules of one kind, such as experiments and algorithms, may call a part alike."""
    alike = {"Settings", "State", "Info"}
    homes: dict[str, set[type]] = {}
    for found in pkgutil.walk_packages(pinfactory.__path__, "pinfactory."):
        if "._" in found.name or found.name.endswith("__main__"):
            continue
        module = import_module(found.name)
        for name in set(getattr(module, "__all__", ())) - alike:
            if isinstance(public := getattr(module, name), type):
                homes.setdefault(name, set()).add(public)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_nothing_heavy_is_imported_before_it_is_asked_for():
    loaded = run("import sys, pinfactory; dir(pinfactory); print([m for m in sys.modules])")
    assert not {"jax", "sklearn", "numpy"} & set(eval(loaded))


def test_a_missing_extra_is_named():
    script = """
        import sys
        sys.modules["gymnasium"] = None
        import pinfactory
        try:
            pinfactory.SpecialistAgent("Taxi-v3")
        except ImportError as error:
            print(error)
    """
    assert "pip install 'pinfactory[rl]'" in run(script)


def test_names_complete_before_they_are_imported_which_changes_nothing_that_others_could_see():
    """Neither the environment that child processes inherit, nor JAX's settings."""
    packages = pkgutil.walk_packages(pinfactory.__path__, "pinfactory.")
    names = [found.name for found in packages if found.ispkg]
    script = f"""
        import os, jax
        import gymnasium, sklearn  # set variables of their own
        from importlib import import_module
        jax.numpy.ones(3).sum()
        before = dict(os.environ), dict(jax.config.values)
        for name in {names}:
            module = import_module(name)
            print(name, sorted(set(getattr(module, "__all__", ())) - set(dir(module))))
        import pinfactory
        for name in pinfactory.__all__:
            getattr(pinfactory, name)
        assert before == (dict(os.environ), dict(jax.config.values))
    """
    assert run(script).splitlines() == [f"{name} []" for name in names]
