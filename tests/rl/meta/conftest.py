"""The task of the tests."""

import pytest

from pinfactory.rl.meta import ParameterFamily
from point_task import best_return, point_tasks


@pytest.fixture(scope="session")
def points() -> ParameterFamily:
    return point_tasks()


@pytest.fixture(scope="session")
def best() -> float:
    return best_return(shakes=2)
