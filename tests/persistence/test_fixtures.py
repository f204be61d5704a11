"""Files that earlier versions wrote are read, and the models in them answer as they did.

`python tools/model_files.py tests/persistence/fixtures/VERSION` writes the files of a version.
"""

from pathlib import Path

import numpy as np
import pytest
from model_files import MODELS

from pinfactory.persistence import load

FILES = sorted((Path(__file__).parent / "fixtures").glob("*/*.pin"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_files_of_earlier_versions_answer_as_they_did(path):
    answer = MODELS[path.stem].answer(load(path))
    np.testing.assert_allclose(answer, np.load(path.with_suffix(".npy")), rtol=1e-4, atol=1e-5)
