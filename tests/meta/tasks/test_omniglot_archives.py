"""The archives are checked: what is missing, damaged or of somebody else is refused by name."""

import hashlib
import io
import shutil
import zipfile
from contextlib import suppress
from http.client import IncompleteRead
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pinfactory.meta.tasks import omniglot_archives as archives

N_CHARACTERS = 3


def drawings(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((N_CHARACTERS, archives.DRAWINGS, 105, 105)) < 0.1


def pack(path: Path, ink: np.ndarray) -> archives.Archive:
    """Write an archive as the official ones are, and return what identifies it."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{path.stem}/", "")
        for character in range(len(ink)):
            for drawing in range(archives.DRAWINGS):
                name = f"{path.stem}/Runes_{character // 2}/character{character}/{drawing:02d}.png"
                image = Image.fromarray(~ink[character, drawing])
                stream = io.BytesIO()
                image.save(stream, "png")
                archive.writestr(name, stream.getvalue())
                digest.update(name.encode())
                digest.update(np.packbits(~ink[character, drawing]).tobytes())
    return archives.Archive(path.name, len(ink), digest.hexdigest())


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two small archives that stand for the official ones; the cache is empty."""
    folder = tmp_path / "archives"
    folder.mkdir()
    parts = [
        pack(folder / f"images_{name}.zip", drawings(seed))
        for seed, name in enumerate(("background", "evaluation"))
    ]
    monkeypatch.setattr(archives, "ARCHIVES", tuple(parts))
    monkeypatch.setattr(archives, "cache_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(archives, "URL", (tmp_path / "nowhere").as_uri() + "/{name}")
    monkeypatch.delenv(archives.FOLDER_VARIABLE, raising=False)
    return folder


def test_drawings_come_in_the_order_of_their_names(official: Path) -> None:
    got = archives.load(official, "resized")
    assert got.images.shape == (2 * N_CHARACTERS, 20, 28, 28)
    assert got.alphabets.tolist() == ["Runes_0", "Runes_0", "Runes_1"] * 2
    # 105 / 28 = 3.75 pixels: every small pixel is a mean, so the mean of all stays.
    ink = np.concatenate([drawings(0), drawings(1)]).mean(axis=(2, 3))
    np.testing.assert_allclose(got.images.mean(axis=(2, 3)) / 255, ink, atol=0.005)


def test_arrays_are_cached(official: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = archives.load(official, "centred")
    monkeypatch.setattr(archives, "read", None)
    again = archives.load(official, "centred")
    np.testing.assert_array_equal(first.images, again.images)
    np.testing.assert_array_equal(first.alphabets, again.alphabets)


def test_a_damaged_cache_is_made_anew(official: Path) -> None:
    first = archives.load(official, "centred")
    (cached,) = archives.cache_directory().iterdir()
    cached.write_bytes(cached.read_bytes()[:1000])
    np.testing.assert_array_equal(archives.load(official, "centred").images, first.images)


def alter_cache(**changes) -> None:
    (cached,) = archives.cache_directory().glob("*.npz")
    with np.load(cached) as arrays:
        content = dict(arrays)
    np.savez_compressed(cached, **content | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"images": np.zeros((2 * N_CHARACTERS, 20, 28, 28), np.uint8)},
        {"images": np.zeros((5, 20, 28, 28), np.uint8)},
        {"alphabets": np.array(["Other"] * 6)},
        {"digest": np.array("0" * 64)},
    ],
)
def test_a_cache_that_holds_something_else_is_made_anew(official: Path, changes: dict) -> None:
    first = archives.load(official, "centred")
    alter_cache(**changes)
    again = archives.load(official, "centred")
    np.testing.assert_array_equal(again.images, first.images)
    np.testing.assert_array_equal(again.alphabets, first.alphabets)


def test_a_byte_that_has_changed_anywhere_in_the_cache_is_noticed(official: Path) -> None:
    first = archives.load(official, "centred")
    (cached,) = archives.cache_directory().glob("*.npz")
    content = cached.read_bytes()
    for position in range(0, len(content), max(1, len(content) // 40)):
        altered = bytearray(content)
        altered[position] ^= 0x55
        cached.write_bytes(altered)
        np.testing.assert_array_equal(archives.load(official, "centred").images, first.images)


def test_a_damaged_download_is_fetched_again(
    official: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "URL", official.as_uri() + "/{name}")
    first = archives.load(None, "centred")
    fetched = archives.cache_directory() / "images_background.zip"
    sound = fetched.read_bytes()
    fetched.write_bytes(sound[:5000])
    np.testing.assert_array_equal(archives.load(None, "centred").images, first.images)
    assert fetched.read_bytes() == sound


def test_a_download_that_is_always_damaged_is_not_kept(
    official: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "URL", official.as_uri() + "/{name}")
    source = official / "images_evaluation.zip"
    source.write_bytes(source.read_bytes()[:5000])
    with pytest.raises(ValueError, match="must be the official archive") as caught:
        archives.load(None, "centred")
    assert archives.FOLDER_VARIABLE in str(caught.value)
    assert not (archives.cache_directory() / "images_evaluation.zip").exists()


def test_a_damaged_download_may_have_been_removed_by_another_process(
    official: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(archive: archives.Archive, path: Path, preprocessing: str) -> None:
        path.unlink()
        raise ValueError("damaged")

    monkeypatch.setattr(archives, "URL", official.as_uri() + "/{name}")
    monkeypatch.setattr(archives, "read", read)
    with pytest.raises(ValueError, match="must be the official archive"):
        archives.load(None, "centred")


@pytest.mark.parametrize(
    ("headers", "told"),
    [({"Content-Length": "1000"}, "only 2 of 1000 bytes"), ({}, "IncompleteRead")],
)
def test_a_download_that_breaks_off_is_not_kept(
    official: Path, monkeypatch: pytest.MonkeyPatch, headers: dict, told: str
) -> None:
    class Short(io.BytesIO):
        def read(self, *size: int) -> bytes:
            if not headers and self.tell():  # parts of unknown length
                raise IncompleteRead(b"PK")
            return super().read(*size)

    Short.headers = headers
    monkeypatch.setattr(archives.urllib.request, "urlopen", lambda *a, **k: Short(b"PK"))
    with pytest.raises(FileNotFoundError, match=told):
        archives.load(None, "centred")
    assert not list(archives.cache_directory().iterdir())


def test_the_folder_may_come_from_the_environment(
    official: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(archives.FOLDER_VARIABLE, str(official))
    assert len(archives.load(None, "centred").images) == 2 * N_CHARACTERS


def test_archives_are_fetched_where_no_folder_is_named(
    official: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "URL", official.as_uri() + "/{name}")
    assert len(archives.load(None, "centred").images) == 2 * N_CHARACTERS
    assert (archives.cache_directory() / "images_background.zip").is_file()


def test_without_a_network_the_error_says_what_to_do(official: Path) -> None:
    with pytest.raises(FileNotFoundError, match=archives.FOLDER_VARIABLE):
        archives.load(None, "centred")
    assert not list(archives.cache_directory().iterdir())


def test_a_missing_archive_is_named(official: Path) -> None:
    (official / "images_evaluation.zip").unlink()
    with pytest.raises(FileNotFoundError, match=r"must hold images_evaluation\.zip"):
        archives.load(official, "centred")


def test_a_damaged_archive_is_refused(official: Path) -> None:
    path = official / "images_background.zip"
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="damaged"):
        archives.load(official, "centred")
    content[2000:2100] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        archives.load(official, "centred")


def test_a_bit_that_has_changed_anywhere_is_damage_or_changes_nothing(official: Path) -> None:
    path = official / "images_background.zip"
    content = path.read_bytes()
    sound = archives.read(archives.ARCHIVES[0], path, "resized").images
    # The encryption mark of the first member, too, and positions all over the file.
    directory = content.index(b"PK\x01\x02")
    for position in (directory + 8, *range(0, len(content), len(content) // 60)):
        for bit in (0x01, 0x40):
            altered = bytearray(content)
            altered[position] ^= bit
            path.write_bytes(altered)
            with suppress(ValueError):  # any other error is a raw one
                read = archives.read(archives.ARCHIVES[0], path, "resized").images
                np.testing.assert_array_equal(read, sound)


def test_archives_of_something_else_are_refused(official: Path) -> None:
    pack(official / "images_background.zip", drawings(5))
    with pytest.raises(ValueError, match="some of its drawings are others"):
        archives.load(official, "centred")
    pack(official / "images_background.zip", drawings(0)[:2])
    with pytest.raises(ValueError, match="60 in all, but got 40"):
        archives.load(official, "centred")


def test_archives_in_each_others_place_are_refused(official: Path) -> None:
    shutil.copy(official / "images_evaluation.zip", official / "images_background.zip")
    with pytest.raises(ValueError, match="the official images_background"):
        archives.load(official, "centred")


def test_centring_forgets_place_and_size() -> None:
    sheet = np.zeros((105, 105), bool)
    sheet[5:16, 70:92] = True
    image = archives.centred(sheet)
    expected = np.zeros((28, 28), np.uint8)
    expected[8:19, 3:25] = 255
    np.testing.assert_array_equal(image, expected)
    larger = np.zeros((105, 105), bool)
    larger[40:84, 10:98] = True
    np.testing.assert_array_equal(archives.centred(larger), expected)


def test_a_blank_sheet_stays_blank() -> None:
    assert not archives.centred(np.zeros((105, 105), bool)).any()
