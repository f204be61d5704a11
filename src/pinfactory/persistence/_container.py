"""The file itself: a zip of a JSON manifest and one safetensors member.

Everything a file says is checked before it is used: no size that it states is used before it is
compared with the size of the file.
"""

import os
import stat
import struct
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
import safetensors
import safetensors.numpy

from ._atomic import FilePath, atomic_write
from ._errors import DamagedFileError, NotAModelFileError
from ._manifest import (
    DTYPES,
    MAX_MANIFEST_BYTES,
    ArraySpec,
    Manifest,
    manifest_from_text,
    manifest_to_text,
)

MANIFEST, ARRAYS = "manifest.json", "arrays.safetensors"

_ENCRYPTED = 0x1
# What an archive of no members is, and how every archive without a comment begins its last part.
_END = b"PK\x05\x06" + bytes(18)
_MAGIC = {
    b"\x93NUMPY": "a NumPy .npy file",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"\x1f\x8b": "a gzip file",
    **{bytes([0x80, protocol]): "a pickle, which is never loaded" for protocol in range(2, 6)},
}
# What zipfile raises for the many ways in which an archive can be wrong.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)


def write(
    path: FilePath,
    kind: str,
    meta: Mapping[str, Any],
    specs: Mapping[str, ArraySpec],
    arrays: dict[str, np.ndarray],
) -> None:
    """Write a file atomically; the same content gives the same bytes."""
    text = manifest_to_text(kind, meta, specs)
    with (
        atomic_write(path) as stream,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive,
    ):
        archive.writestr(_member(MANIFEST), text)
        archive.writestr(_member(ARRAYS), safetensors.numpy.save(arrays))


def read_manifest(path: FilePath) -> Manifest:
    """Read what a file says about itself, without its arrays.

    Raises
    ------
    ModelFileError
        One of its subclasses, if the file is not a sound pinfactory file of a known version.
    """
    with _open(path) as stream:
        archive, members = _members(stream, path)
        return _read_manifest(archive, members, path)


def read(path: FilePath) -> tuple[Manifest, dict[str, np.ndarray]]:
    """Read a whole file, checking that its arrays are those of its manifest."""
    with _open(path) as stream:
        archive, members = _members(stream, path)
        manifest = _read_manifest(archive, members, path)
        content = _read_member(archive, members[ARRAYS], path)
    arrays = _parse_arrays(content, path)
    if arrays.keys() != manifest.arrays.keys():
        odd = sorted(arrays.keys() ^ manifest.arrays.keys())[:5]
        raise DamagedFileError(f"{path}: manifest and arrays must list the same names, not {odd}")
    for name, spec in manifest.arrays.items():
        if not spec.is_storage_of(arrays[name]):
            found = ArraySpec(arrays[name].shape, arrays[name].dtype.name)
            raise DamagedFileError(f"{path}: {name} must be {spec} as in the manifest, not {found}")
    return manifest, arrays


def _member(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.create_system = 3
    info.external_attr = 0o644 << 16
    return info


def _open(path: FilePath) -> IO[bytes]:
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise NotAModelFileError(f"{path} must be a pinfactory file, but it is {what}")
    return open(path, "rb")


def _members(
    stream: IO[bytes], path: FilePath
) -> tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]:
    head = stream.read(8)
    if not head.startswith(b"PK\x03\x04"):
        known = [name for magic, name in _MAGIC.items() if head.startswith(magic)]
        what = "an empty file" if not head else known[0] if known else "no zip archive"
        raise NotAModelFileError(f"{path} must be a pinfactory file, but it is {what}")
    try:
        archive = zipfile.ZipFile(stream)
    except _ZIP_ERRORS as error:
        raise DamagedFileError(f"{path} is truncated or damaged: {error}") from error
    infos = archive.infolist()
    names = [info.filename for info in infos]
    if MANIFEST not in names:
        pickles = [name for name in names if name.endswith((".pkl", ".pickle"))]
        what = f"holds a pickle, {pickles[0]!r}" if pickles else f"holds {names[:5]}"
        raise NotAModelFileError(
            f"{path} must be a pinfactory file, but it is a zip that {what} and no {MANIFEST}"
        )
    size = os.fstat(stream.fileno()).st_size
    stream.seek(max(0, size - len(_END)))
    end = stream.read()
    if (
        len(set(names)) < len(names)
        # The end of a zip without a comment, and nothing after it.
        or not (end.startswith(_END[:4]) and end.endswith(_END[-2:]))
        # A truncated file may end with a whole archive that was data of the full one.
        or min(info.header_offset for info in infos) != 0
        or any(info.compress_type != zipfile.ZIP_STORED for info in infos)
        or any(info.compress_size != info.file_size for info in infos)
        or any(info.flag_bits & _ENCRYPTED for info in infos)
        or sum(info.file_size for info in infos) > size
    ):
        raise DamagedFileError(
            f"{path} must be a zip of distinct, uncompressed, unencrypted members that fill it"
        )
    return archive, {info.filename: info for info in infos}


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: FilePath) -> bytes:
    try:
        return archive.read(info)
    except _ZIP_ERRORS as error:
        raise DamagedFileError(f"{path}: {info.filename} is damaged: {error}") from error


def _read_manifest(
    archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], path: FilePath
) -> Manifest:
    if members[MANIFEST].file_size > MAX_MANIFEST_BYTES:
        raise DamagedFileError(f"{path}: {MANIFEST} must be at most {MAX_MANIFEST_BYTES} bytes")
    manifest = manifest_from_text(_read_member(archive, members[MANIFEST], path), path)
    if members.keys() != {MANIFEST, ARRAYS}:
        odd = sorted(members.keys() ^ {MANIFEST, ARRAYS})[:5]
        raise DamagedFileError(
            f"{path} must hold {MANIFEST} and {ARRAYS} only; missing or unexpected: {odd}"
        )
    return manifest


def _parse_arrays(content: bytes, path: FilePath) -> dict[str, np.ndarray]:
    try:
        entries = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise DamagedFileError(f"{path}: {ARRAYS} is damaged: {error}") from error
    arrays = {}
    for name, entry in entries:
        if entry["dtype"] not in DTYPES:
            raise DamagedFileError(f"{path}: {name} has the unknown type {entry['dtype']!r}")
        data = bytearray(entry["data"])  # NumPy arrays over bytes would be read-only
        if entry["dtype"] == "BOOL" and data.translate(None, b"\x00\x01"):
            raise DamagedFileError(f"{path}: {name} must hold booleans, but holds other bytes")
        dtype = DTYPES[entry["dtype"]].newbyteorder("<")
        flat = np.frombuffer(data, dtype) if data else np.empty(0, dtype)
        arrays[name] = flat.reshape(entry["shape"])
    return arrays
