"""The file itself: the same bytes for the same content, and a named error for every bad file."""

import io
import json
import math
import os
import pickle
import tempfile
import time
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from file_contents import (
    GOOD_ARRAYS,
    TREE,
    assert_identical,
    manifest,
    model_file,
    same,
    zip_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfactory.persistence import (
    ArraySpec,
    DamagedFileError,
    MismatchError,
    ModelFileError,
    NotAModelFileError,
    UnsupportedVersionError,
    load,
    load_tree,
    read_manifest,
    save_tree,
)


def test_the_same_content_gives_the_same_bytes(tmp_path, monkeypatch):
    save_tree(tmp_path / "a.pin", TREE, kind="test", meta={"x": 1})
    monkeypatch.setattr(time, "time", lambda: 2e9)
    save_tree(tmp_path / "b.pin", dict(reversed(TREE.items())), kind="test", meta={"x": 1})
    assert (tmp_path / "a.pin").read_bytes() == (tmp_path / "b.pin").read_bytes()


def test_other_tools_can_read_the_file(path):
    save_tree(path, {"w": np.arange(3.0)}, kind="test", meta={"beta": 2.5})
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        arrays = safetensors.numpy.load(archive.read("arrays.safetensors"))
        data = json.loads(archive.read("manifest.json"))
    assert data["meta"] == {"beta": 2.5}
    np.testing.assert_array_equal(arrays["['w']"], [0.0, 1.0, 2.0])


def test_the_manifest_can_be_read_alone(path):
    save_tree(path, TREE, kind="test", meta={"β": (1, math.inf)})
    found = read_manifest(path)
    assert (found.version, found.kind, found.meta) == (1, "test", {"β": (1, math.inf)})
    assert found.arrays == {
        "['flag']": ArraySpec((2,), "bool"),
        "['step']": ArraySpec((), "python.int"),
        "['w']": ArraySpec((3,), "float64"),
    }


class Bomb:
    """A pickle that leaves a trace when it is loaded."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("place", ["bare", "zip", "torch", "manifest", "arrays", "member"])
def test_a_pickle_in_disguise_is_refused_and_never_run(path, tmp_path, protocol, place):
    trace = tmp_path / "trace"
    bomb = pickle.dumps(Bomb(trace), protocol=protocol)
    content = {
        "bare": bomb,
        "zip": zip_of([("model.pkl", bomb)]),
        "torch": zip_of([("archive/data.pkl", bomb), ("archive/version", "3")]),
        "manifest": zip_of([("manifest.json", bomb), ("arrays.safetensors", GOOD_ARRAYS)]),
        "arrays": model_file(content=bomb),
        "member": model_file(extra=[("state.pkl", bomb)]),
    }[place]
    path.write_bytes(content)
    error = NotAModelFileError if place in ("bare", "zip", "torch") else DamagedFileError
    with pytest.raises(error) as caught:
        load_tree(path, {"w": np.zeros(3)}, kind="test")
    with pytest.raises(error):
        load(path)
    if place in ("zip", "torch") or (place == "bare" and protocol >= 2):
        assert "a pickle" in str(caught.value)
    assert not trace.exists()


def numpy_bytes(save):
    stream = io.BytesIO()
    save(stream, np.zeros(3))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an empty file"),
        (b"PK", "no zip archive"),
        (os.urandom(7) * 100, "it is"),
        (numpy_bytes(np.save), "NumPy"),
        (numpy_bytes(np.savez), "arr_0.npy"),
        (GOOD_ARRAYS, "no zip archive"),
        (b"prefix" + model_file(), "no zip archive"),
        (model_file(format="other"), "manifest says otherwise"),
        (zip_of([("manifest.json", "[]")]), "manifest says otherwise"),
    ],
)
def test_another_file_is_refused_and_described(path, content, message):
    path.write_bytes(content)
    for call in (read_manifest, load, lambda p: load_tree(p, TREE, kind="test")):
        with pytest.raises(NotAModelFileError, match=message):
            call(path)


def test_a_directory_and_a_pipe_are_refused_and_a_missing_file_is_an_ordinary_error(tmp_path):
    with pytest.raises(NotAModelFileError, match="a directory"):
        load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotAModelFileError, match="not a regular file"):
        load(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.pin")
    with pytest.raises(FileNotFoundError, match="directory"):
        save_tree(tmp_path / "missing" / "model.pin", TREE, kind="test")


@pytest.mark.parametrize("version", [2, 99, 0, "1", 1.0, True, None])
def test_an_unknown_version_is_refused(path, version):
    path.write_bytes(model_file(version=version, content=b"new layout", extra=[("new", "member")]))
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        load_tree(path, TREE, kind="test")


def with_header(header, data=b""):
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return len(text).to_bytes(8, "little") + text + data


W = {"dtype": "F64", "shape": [3], "data_offsets": [0, 24]}
DAMAGED = {
    "header beyond the file": model_file(content=(2**62).to_bytes(8, "little") + b"{}"),
    "header beyond 64 bits": model_file(content=b"\xff" * 8 + b"{}"),
    "data beyond the file": model_file(content=with_header({"['w']": W}, b"\0" * 23)),
    "data after the end": model_file(content=with_header({"['w']": W}, b"\0" * 25)),
    "overflowing shape": model_file(
        content=with_header({"['w']": W | {"shape": [2**40, 2**40]}}, b"\0" * 24)
    ),
    "header no JSON": model_file(content=with_header(b"[" * 1000)),
    "unknown element type": model_file(
        content=with_header({"['w']": W | {"dtype": "F8_E4M3", "shape": [24]}}, b"\0" * 24)
    ),
    "booleans of 2": model_file(
        content=with_header({"['w']": W | {"dtype": "BOOL", "shape": [24]}}, b"\2" * 24),
        arrays={"['w']": {"shape": [24], "dtype": "bool"}},
    ),
    "no arrays": zip_of([("manifest.json", manifest())]),
    "empty arrays": model_file(content=b""),
    "other arrays": model_file(content=safetensors.numpy.save({"x": np.zeros(3)})),
    "other shape": model_file(content=safetensors.numpy.save({"['w']": np.zeros(4)})),
    "other type": model_file(content=safetensors.numpy.save({"['w']": np.zeros(3, "i8")})),
    "unexpected member": model_file(extra=[("readme.txt", "hello")]),
    "path traversal": model_file(extra=[("../../../tmp/evil", "x"), ("/etc/evil", "x")]),
    "duplicate manifest": model_file(extra=[("manifest.json", manifest())]),
    "duplicate arrays": model_file(extra=[("arrays.safetensors", GOOD_ARRAYS)]),
    "compressed": model_file(compression=zipfile.ZIP_DEFLATED),
    "appended bytes": model_file() + b"\0",
    "an appended file": model_file() + model_file(),
    "zip bomb": model_file(content=bytes(10**7), compression=zipfile.ZIP_DEFLATED),
    "no JSON": zip_of([("manifest.json", "{"), ("arrays.safetensors", GOOD_ARRAYS)]),
    "no UTF-8": zip_of([("manifest.json", b'"\xff"'), ("arrays.safetensors", GOOD_ARRAYS)]),
    "deep JSON": zip_of([("manifest.json", "[" * 10**6)]),
    "deep meta": model_file(meta={"x": json.loads("[" * 500 + "]" * 500)}),
    "huge JSON": zip_of([("manifest.json", b" " * (2**26 + 1))]),
    "huge integer": zip_of([("manifest.json", '{"format": ' + "9" * 5000 + "}")]),
    "NaN in JSON": model_file(meta={"x": math.nan}),
    "key twice": zip_of([("manifest.json", manifest()[:-1] + ', "kind": "other"}')]),
    "kind no string": model_file(kind=["test"]),
    "meta no mapping": model_file(meta=[1]),
    "meta no mapping but a tag": model_file(meta={"$tuple": []}),
    "meta with unknown tag": model_file(meta={"x": {"$import": "os"}}),
    "library no string": model_file(library=3),
    "arrays no mapping": model_file(arrays=[1]),
    "negative shape": model_file(arrays={"['w']": {"shape": [-3], "dtype": "float64"}}),
    "shape no list": model_file(arrays={"['w']": {"shape": 3, "dtype": "float64"}}),
    "shape missing": model_file(arrays={"['w']": {"dtype": "float64"}}),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_or_hostile_file_is_refused_by_name(path, content):
    path.write_bytes(content)
    before = sorted(path.parent.iterdir())
    with pytest.raises(DamagedFileError, match=r"model\.pin"):
        load_tree(path, {"w": np.zeros(3)}, kind="test")
    assert sorted(path.parent.iterdir()) == before


def test_the_untouched_hand_made_file_loads(path):
    """So that the refusals above are for the reason each of them names."""
    path.write_bytes(model_file())
    assert_identical(load_tree(path, {"w": np.zeros(3)}, kind="test"), {"w": np.arange(3.0)})


def test_random_keys_with_data_of_another_length_are_refused(path):
    data = safetensors.numpy.save({"": np.zeros(5, np.uint32)})
    path.write_bytes(model_file(content=data, arrays={"": {"shape": [], "dtype": "key<fry>"}}))
    with pytest.raises(MismatchError, match=r"key data of shape \(2,\)"):
        load_tree(path, jax.random.key(0), kind="test")


def test_a_truncated_file_does_not_load_as_a_file_that_was_its_data(path):
    save_tree(path, {"w": np.zeros(3)}, kind="test")
    inner = path.read_bytes()
    save_tree(path, {"w": np.frombuffer(inner, np.uint8)}, kind="test")
    outer = path.read_bytes()
    path.write_bytes(outer[: outer.index(inner) + len(inner)])
    with pytest.raises(DamagedFileError):
        load_tree(path, {"w": np.zeros(3)}, kind="test")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "model.pin"
    save_tree(path, TREE, kind="test", meta={"classes": ("a", math.nan), "beta": 25.0})
    return path.read_bytes(), read_manifest(path)


def check_altered(content, sound):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pin")
        path.write_bytes(content)
        try:
            loaded, found = load_tree(path, TREE, kind="test"), read_manifest(path)
        except ModelFileError:
            return False
    assert_identical(loaded, TREE)
    assert same(found.meta, sound[1].meta)
    assert (found.kind, found.arrays) == (sound[1].kind, sound[1].arrays)
    return True


def test_a_file_truncated_at_any_byte_is_refused(sound):
    for length in range(len(sound[0])):
        assert not check_altered(sound[0][:length], sound)


def test_a_flipped_bit_at_any_byte_is_refused_or_changes_nothing(sound):
    for position in range(len(sound[0])):
        altered = bytearray(sound[0])
        altered[position] ^= 1 << position % 8
        check_altered(bytes(altered), sound)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_altered_stretch_is_refused_or_changes_nothing(sound, data):
    start = data.draw(st.integers(0, len(sound[0]) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=4))
    cut = data.draw(st.integers(0, 6))
    check_altered(sound[0][:start] + patch + sound[0][start + cut :], sound)
