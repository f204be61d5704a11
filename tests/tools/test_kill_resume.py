"""Runs that are killed go on as if they had not been: a few of what the command does."""

import pytest
from kill_resume import kill_and_resume


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SpecialistMixture", "SpecialistRegressor"])
def test_a_killed_run_ends_where_an_unbroken_one_does(name):
    killed, faults = kill_and_resume(name, 2)
    assert killed > 0
    assert faults == []
