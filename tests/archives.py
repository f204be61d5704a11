"""Where the real Omniglot archives are, for the tests that need them."""

import os
from pathlib import Path

import pytest

from pinfactory.meta.tasks.omniglot_archives import ARCHIVES, FOLDER_VARIABLE

FOLDER = Path(os.environ.get(FOLDER_VARIABLE, "missing"))
needs_archives = pytest.mark.skipif(
    not all((FOLDER / archive.name).is_file() for archive in ARCHIVES),
    reason=f"the environment variable {FOLDER_VARIABLE} names no folder with the archives",
)
