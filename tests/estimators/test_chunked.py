"""Mixtures of data that need not fit into memory: the same as in memory, but for rounding."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from pinfactory import SpecialistMixture
from pinfactory.density import streaming
from pinfactory.estimators import chunked

pyarrow = pytest.importorskip("pyarrow", reason="pip install 'pinfactory[large]'")
dask = pytest.importorskip("dask", reason="pip install 'pinfactory[large]'")

N = 40_000
CENTRES = np.array([[0.0, 0.0, 9.0], [6.0, 0.0, 0.0], [0.0, -6.0, 0.0], [4.0, 6.0, 4.0]])
SETTINGS = {"n_experts": 6, "random_state": 0}


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    x = CENTRES[rng.integers(4, size=N)] + rng.normal(size=(N, 3)) * [1.0, 0.5, 0.2]
    return pd.DataFrame(x, columns=["a", "b", "c"])


@pytest.fixture(scope="module")
def in_memory(frame):
    return SpecialistMixture(**SETTINGS).fit(frame)


@pytest.fixture
def small(monkeypatch):
    """Four of ten blocks fit into memory, and chunks are small."""
    monkeypatch.setattr(chunked, "MAPPED_BYTES", 0)
    monkeypatch.setattr(chunked, "CHUNK", 8192)
    monkeypatch.setattr(streaming, "MOST_BYTES", 4 * 4096 * 3 * 4)


def mapped(frame, folder):
    np.save(folder / "x.npy", frame.to_numpy())
    return np.load(folder / "x.npy", mmap_mode="r")


def parquet(frame, folder):
    frame.to_parquet(folder / "x.parquet", row_group_size=9000)
    return folder / "x.parquet"


def arrow(frame, folder):
    from pyarrow import dataset

    return dataset.dataset(parquet(frame, folder))


def dask_array(frame, folder):
    import dask.array as da

    return da.from_array(frame.to_numpy(), chunks=(8192, 2))


def dask_frame(frame, folder):
    import dask.dataframe as dd

    frame = dd.from_pandas(frame, npartitions=5)
    # One partition is empty, as after a filter.
    return dd.concat([frame, frame[frame["a"] > 1e9]])


@pytest.mark.parametrize("kind", [mapped, parquet, arrow, dask_array, dask_frame])
def test_a_fit_of_chunks_is_that_in_memory(kind, frame, in_memory, small, tmp_path):
    mixture = SpecialistMixture(**SETTINGS).fit(kind(frame, tmp_path))
    assert mixture.n_iter_ == in_memory.n_iter_
    assert mixture.lower_bound_ == pytest.approx(in_memory.lower_bound_, rel=1e-5)
    np.testing.assert_allclose(mixture.weights_, in_memory.weights_, atol=1e-5)
    used = in_memory.weights_ > 0
    assert used.sum() == 4
    np.testing.assert_allclose(mixture.means_[used], in_memory.means_[used], atol=1e-4)
    np.testing.assert_allclose(mixture.covariances_[used], in_memory.covariances_[used], atol=1e-4)
    assert mixture.information_.selector == pytest.approx(in_memory.information_.selector, abs=1e-5)
    assert mixture.n_features_in_ == 3
    if kind not in (mapped, dask_array):
        assert list(mixture.feature_names_in_) == ["a", "b", "c"]


def test_samples_that_fit_are_read_once_for_all_iterations(frame, in_memory, tmp_path, monkeypatch):
    monkeypatch.setattr(chunked, "MAPPED_BYTES", 0)
    mixture = SpecialistMixture(**SETTINGS).fit(mapped(frame, tmp_path))
    np.testing.assert_allclose(mixture.weights_, in_memory.weights_, atol=1e-6)


def test_many_equal_rows_are_no_trouble(small, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(CENTRES[rng.integers(4, size=N)], columns=["a", "b", "c"])
    mixture = SpecialistMixture(4, random_state=0).fit(mapped(frame, tmp_path))
    share = frame.groupby(["a", "b", "c"]).size().to_numpy() / N
    np.testing.assert_allclose(np.sort(mixture.weights_), np.sort(share), atol=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.assign(b=np.nan), "contains NaN"),
        (lambda frame: frame.head(1), "at least 2 samples"),
        (lambda frame: frame.assign(b="tin"), "could not convert string"),
    ],
)
def test_chunks_that_cannot_be_learned_from_are_refused(change, message, frame, tmp_path):
    path = parquet(change(frame.head(100)), tmp_path)
    with pytest.raises(ValueError, match=message):
        SpecialistMixture(2).fit(path)


def test_what_chunks_do_not_offer_is_refused(frame, tmp_path):
    with pytest.raises(ValueError, match="`sample_weight` must be None"):
        SpecialistMixture(2).fit(parquet(frame, tmp_path), sample_weight=np.ones(N))
    with pytest.raises(FileNotFoundError, match="path of Parquet files"):
        SpecialistMixture(2).fit(tmp_path / "nothing.parquet")


MEASURED = """
import resource, sys, warnings
from pathlib import Path
import numpy as np
import pandas as pd
from pinfactory import SpecialistMixture
from pinfactory.density import streaming
from pinfactory.estimators.chunked import LocalChunks
warnings.simplefilter("ignore")
streaming.MOST_BYTES = 2**20
folder = Path(sys.argv[1])

def rows(n):
    return (np.random.default_rng(i).random((32_768, 8)) for i in range(n))

def generated(n):
    return LocalChunks(next(rows(1))[:5], lambda: rows(n))

def parquet(n):
    parts = folder / str(n)
    parts.mkdir()
    for i, part in enumerate(rows(n)):
        pd.DataFrame(part, columns=list("abcdefgh")).to_parquet(parts / f"{i}.parquet")
    return parts

def peak_of_fit(source):
    mixture = SpecialistMixture(3, max_iter=1, tol=0.0, neglect=False, random_state=0)
    mixture.fit(source)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

few, many = map({"generated": generated, "parquet": parquet}[sys.argv[2]], (8, 120))
print(-peak_of_fit(few) + peak_of_fit(many))
"""


@pytest.mark.slow
@pytest.mark.parametrize("source", ["generated", "parquet"])
def test_memory_does_not_grow_with_the_number_of_rows(source, tmp_path):
    command = [sys.executable, "-c", MEASURED, str(tmp_path), source]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    grown = int(told.stdout) * (1024 if sys.platform == "linux" else 1)
    # 112 chunks more are 235 MB of numbers.
    assert grown < 60 * 2**20
