"""Files of every kind of model, altered at random: a documented error or a sound answer."""

import json
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from fuzz_files import fuzz
from model_files import MODELS, write

from pinfactory.persistence import DamagedFileError, load

QUICK = ("SpecialistClassifier", "SpecialistMixture")
SLOW = [pytest.param(k, marks=pytest.mark.slow) for k in MODELS if k not in QUICK]
FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize("kind", [*QUICK, *SLOW])
def test_altered_files_are_refused_or_answer_with_finite_numbers(kind, tmp_path):
    write(tmp_path, [kind])
    content = (tmp_path / f"{kind}.pin").read_bytes()
    # `tools/fuzz_files.py` alters ten thousand of each kind.
    outcomes = dict(fuzz(kind, content, range(100)))
    assert {s: o for s, o in outcomes.items() if o.fault} == {}
    assert {o.name for o in outcomes.values()} >= {"refused", "answered"}


def altered(path, change):
    """Change the manifest of a file."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(content["manifest.json"])
    change(manifest["meta"])
    content["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in content.items():
            archive.writestr(name, part)


@pytest.mark.parametrize("mean", [10**30, {"$array": ["float32", [2], [0.0, 1.0]]}, "a"])
def test_a_scale_that_no_meta_learner_has_is_refused(mean, tmp_path):
    path = tmp_path / "model.pin"
    path.write_bytes((FIXTURES / "0.2.0" / "MetaSpecialistRegressor.pin").read_bytes())
    altered(path, lambda meta: meta["attributes"]["moments_"]["$tuple"].__setitem__(0, mean))
    with pytest.raises(DamagedFileError, match="means and scales must be finite"):
        load(path)


@pytest.mark.parametrize("shares", [[-0.6, 1.6], [0.0, 0.0], [None, 1.0], "a"])
def test_shares_of_experts_that_cannot_be_are_refused(shares, tmp_path):
    path = tmp_path / "model.pin"
    path.write_bytes((FIXTURES / "0.2.0" / "SpecialistRegressor.pin").read_bytes())
    altered(path, lambda meta: meta["information"].update(responsibility=shares))
    with pytest.raises(DamagedFileError, match="building it fails"):
        load(path)


@pytest.mark.slow
def test_a_file_cannot_ask_for_tasks_of_very_many_classes(tmp_path):
    write(tmp_path, ["PreTraining"])
    path = tmp_path / "PreTraining.pin"
    altered(path, lambda meta: meta["attributes"].update(n_outputs_=6 * 10**7))
    with pytest.raises(DamagedFileError, match="`n_outputs_` must be"):
        load(path)


@pytest.mark.parametrize("kind", QUICK)
def test_a_file_of_very_many_experts_is_refused_before_it_takes_memory(kind, tmp_path):
    write(tmp_path, [kind])
    path = tmp_path / f"{kind}.pin"
    altered(path, lambda meta: meta["attributes"].update(n_experts_=10**7))
    # Whatever is made before the file is refused, arrays as long as there are experts are not.
    tracemalloc.start()
    with pytest.raises(DamagedFileError, match="more than the limit allows"):
        load(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**25


def test_a_file_of_the_papers_mixture_has_its_information_and_not_very_many_experts(tmp_path):
    write(tmp_path, ["paper.GradientMixture"])
    path = tmp_path / "paper.GradientMixture.pin"
    altered(path, lambda meta: meta["params"].update(n_experts=60_000_000))
    with pytest.raises(DamagedFileError, match="more than the limit allows"):
        load(path)
    altered(path, lambda meta: meta["params"].update(n_experts=2))
    assert load(path).information_
    altered(path, lambda meta: meta.pop("information"))
    with pytest.raises(DamagedFileError, match="must hold its information"):
        load(path)
