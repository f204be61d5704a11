"""Rules of the house: who may import whom, and what exists only once."""

from pathlib import Path

import structure


def test_no_private_name_is_used_across_packages():
    assert structure.private_imports() == []


def test_arrows_point_one_way():
    assert structure.backward_arrows() == []


def test_what_should_exist_once_does():
    counts = {name: len(places) for name, places in structure.counts().items()}
    # One step for every loss, and one for policies and critics with an optimiser each.
    assert counts["gradient steps"] == 2
    # Of a learner, of an agent, and of an agent for families of tasks.
    assert counts["states with an optimiser"] == 3
    assert counts["information classes"] == 1
    assert counts["training loops"] == 1


def test_functions_fit_on_a_screen():
    assert structure.long_functions() == []


def test_every_long_file_has_a_reason_and_no_other():
    assert set(structure.long_files()) == set(structure.WHY_LONG)


def test_every_package_has_a_folder_of_tests():
    tests = Path(__file__).parent
    packages = [
        init.parent.relative_to(structure.ROOT) for init in structure.ROOT.rglob("__init__.py")
    ]
    assert [
        str(package) for package in packages if not list((tests / package).glob("test_*.py"))
    ] == []
