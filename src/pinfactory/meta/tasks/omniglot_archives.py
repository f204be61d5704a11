"""The two official Omniglot archives: found or fetched, checked, and kept as small arrays."""

import hashlib
import io
import os
import shutil
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, UInt8
from PIL import Image

from pinfactory.core.compiling import cache_directory
from pinfactory.persistence import atomic_write

URL = "https://github.com/brendenlake/omniglot/raw/master/python/{name}"
FOLDER_VARIABLE = "PINFACTORY_OMNIGLOT"
HINT = (
    "put the official archives into a folder and name it by `folder` or by the environment "
    f"variable {FOLDER_VARIABLE}."
)
DRAWINGS, SIDE, INK_SIDE = 20, 28, 22
# What comes of a damaged zip besides errors of the system: one of a member that cannot be
# decompressed, is called encrypted, or is said to be of a kind that nobody knows.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


class Archive(NamedTuple):
    """What an official archive holds: characters of 20 drawings each, and which exactly.

    The digest is of names and pixels, because the same drawings are about in archives that were
    packed anew.
    """

    name: str
    characters: int
    digest: str


ARCHIVES = (
    Archive(
        "images_background.zip",
        964,
        "ae954f47c301cf0a998ff2a674d77bec131cc2d5875c23e4b05a71c3f83b0ee8",
    ),
    Archive(
        "images_evaluation.zip",
        659,
        "ad219efc952d0e5baaf51522fe5d2ed61b58a315f9e4b3c17e48c1a8361abb14",
    ),
)


class Characters(NamedTuple):
    """All drawings of all characters, ink bright, and the alphabet that each character is from."""

    images: UInt8[np.ndarray, "characters drawings side side"]
    alphabets: np.ndarray


def load(folder: str | os.PathLike[str] | None, preprocessing: str) -> Characters:
    """Return the drawings, from the cache if these archives were read before."""
    named = folder if folder is not None else os.environ.get(FOLDER_VARIABLE) or None
    paths = [_path(archive, named) for archive in ARCHIVES]
    if (known := _read_cache(_cache_path(paths, preprocessing))) is not None:
        return known
    read_one = read if named is not None else _read_or_fetch
    parts = [read_one(a, path, preprocessing) for a, path in zip(ARCHIVES, paths, strict=True)]
    characters = Characters(*map(np.concatenate, zip(*parts, strict=True)))
    cached = _cache_path(paths, preprocessing)  # of archives that may have been fetched anew
    cached.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(cached) as new:
        np.savez_compressed(new, **characters._asdict(), digest=np.array(_digest(characters)))
    return characters


def _cache_path(paths: list[Path], preprocessing: str) -> Path:
    """Return where the arrays of these archives are kept."""
    key = hashlib.sha256(preprocessing.encode())
    for path in paths:
        key.update(path.read_bytes())
    return cache_directory() / f"omniglot-{key.hexdigest()[:16]}.npz"


def _read_cache(path: Path) -> Characters | None:
    """Return the arrays in the cache; None if there are none, or they are damaged."""
    try:
        # NumPy leaves a damaged file open that it opened itself.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in ("images", "alphabets", "digest")}
    except (*_ZIP_ERRORS, OSError, KeyError, ValueError):
        return None
    n_characters = sum(archive.characters for archive in ARCHIVES)
    sound = (
        found["images"].shape == (n_characters, DRAWINGS, SIDE, SIDE)
        and found["images"].dtype == np.uint8
        and found["alphabets"].shape == (n_characters,)
    )
    characters = Characters(found["images"], found["alphabets"])
    return characters if sound and str(found["digest"]) == _digest(characters) else None


def _digest(characters: Characters) -> str:
    digest = hashlib.sha256(characters.images.tobytes())
    digest.update("\n".join(characters.alphabets.tolist()).encode())
    return digest.hexdigest()


def _read_or_fetch(archive: Archive, path: Path, preprocessing: str) -> Characters:
    """Read an archive that was fetched; fetch it again if it is damaged, and keep none that is."""
    try:
        return read(archive, path, preprocessing)
    except ValueError:
        _fetch(archive, path)
    try:
        return read(archive, path, preprocessing)
    except ValueError as error:
        path.unlink(missing_ok=True)  # another process may have been first
        raise ValueError(
            f"{archive.name} must be the official archive, but what was fetched from "
            f"{URL.format(name=archive.name)} is not ({error}); {HINT}"
        ) from error


def read(archive: Archive, path: Path, preprocessing: str) -> Characters:
    """Return the drawings in one archive, after checking that they are the official ones."""
    convert = centred if preprocessing == "centred" else resized
    digest, images, names = hashlib.sha256(), [], []
    for name, ink in _drawings(path):
        digest.update(name.encode())
        digest.update(np.packbits(~ink).tobytes())
        images.append(convert(ink))
        names.append(name)
    if len(images) != archive.characters * DRAWINGS:
        raise ValueError(
            f"{path} must hold {archive.characters} characters with {DRAWINGS} drawings each, "
            f"{archive.characters * DRAWINGS} in all, but got {len(images)} drawings; is it the "
            f"official {archive.name}?"
        )
    if digest.hexdigest() != archive.digest:
        raise ValueError(
            f"{path} must hold the drawings of the official {archive.name}, but some of its "
            "drawings are others; fetch the archive again."
        )
    shape = (archive.characters, DRAWINGS, SIDE, SIDE)
    alphabets = [name.split("/")[1] for name in names[::DRAWINGS]]
    return Characters(np.stack(images).reshape(shape), np.asarray(alphabets))


def centred(ink: Bool[np.ndarray, "h w"]) -> UInt8[np.ndarray, "side side"]:
    """Cut a drawing out, scale its longer side to 22 pixels and put it in the middle.

    Where on the sheet and how large somebody drew says nothing about the character.
    """
    if not ink.any():
        return np.zeros((SIDE, SIDE), np.uint8)
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    drawing = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = INK_SIDE / max(drawing.shape)
    height, width = (max(1, round(side * scale)) for side in drawing.shape)
    top, left = (SIDE - height) // 2, (SIDE - width) // 2
    image = np.zeros((SIDE, SIDE), np.uint8)
    image[top : top + height, left : left + width] = _scale(drawing, height, width)
    return image


def resized(ink: Bool[np.ndarray, "h w"]) -> UInt8[np.ndarray, "side side"]:
    """Scale the whole sheet, as most published work does."""
    return _scale(ink, SIDE, SIDE)


def at_hand() -> bool:
    """Return whether the archives are where they are looked for, so that none has to be fetched."""
    folder = Path(os.environ.get(FOLDER_VARIABLE) or cache_directory())
    return all((folder / archive.name).is_file() for archive in ARCHIVES)


def _path(archive: Archive, named: str | os.PathLike[str] | None) -> Path:
    """Return where the archive is; fetch it into the cache if no folder is named."""
    path = (cache_directory() if named is None else Path(named)) / archive.name
    if path.is_file():
        return path
    if named is not None:
        raise FileNotFoundError(
            f"the folder of Omniglot must hold {archive.name}, but {path} does not exist; get it "
            f"from {URL.format(name=archive.name)}"
        )
    _fetch(archive, path)
    return path


def _fetch(archive: Archive, path: Path) -> None:
    url = URL.format(name=archive.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(url, timeout=30) as answer, atomic_write(path) as stream:
            shutil.copyfileobj(answer, stream)
            stated = answer.headers.get("Content-Length")
            if stated is not None and stream.tell() != int(stated):
                raise ConnectionError(f"only {stream.tell()} of {stated} bytes came")
    except (urllib.error.URLError, TimeoutError, ConnectionError, HTTPException) as error:
        raise FileNotFoundError(
            f"{archive.name} must be fetched once, but {url} cannot be reached ({error}); {HINT}"
        ) from error


def _drawings(path: Path) -> Iterator[tuple[str, Bool[np.ndarray, "h w"]]]:
    """Yield the name of every drawing and where its ink is, sorted by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(n for n in archive.namelist() if n.endswith(".png")):
                with Image.open(io.BytesIO(archive.read(name))) as image:
                    yield name, ~np.asarray(image.convert("1"))
    except (*_ZIP_ERRORS, OSError) as error:
        raise ValueError(
            f"{path} must be a whole zip archive, but it is damaged ({error}); fetch it again."
        ) from error


def _scale(ink: np.ndarray, height: int, width: int) -> np.ndarray:
    image = Image.fromarray(ink.astype(np.uint8) * 255)
    return np.asarray(image.resize((width, height), Image.Resampling.BOX))
