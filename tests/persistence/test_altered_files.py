"""Files of every kind of model, altered at random: a documented error or a sound answer."""

from pathlib import Path

import pytest
from fuzz_files import fuzz
from model_files import MODELS, write

QUICK = ("SpecialistClassifier", "SpecialistMixture")
SLOW = [pytest.param(k, marks=pytest.mark.slow) for k in MODELS if k not in QUICK]
FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize("kind", [*QUICK, *SLOW])
def test_altered_files_are_refused_or_answer_with_finite_numbers(kind, tmp_path):
    write(tmp_path, [kind])
    content = (tmp_path / f"{kind}.pin").read_bytes()
    outcomes = dict(fuzz(kind, content, range(300)))
    assert {s: o for s, o in outcomes.items() if o.fault} == {}
    assert {o.name for o in outcomes.values()} >= {"refused", "answered"}
