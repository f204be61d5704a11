"""Writes that happen wholly or not at all."""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from typing import IO, TypeAlias

FilePath: TypeAlias = str | os.PathLike[str]


@contextlib.contextmanager
def atomic_write(path: FilePath, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Give a stream whose content replaces the file at `path` when the block ends well.

    The content is written to a temporary file in the same directory, forced to the disk, and
    renamed. If anything fails on the way, an interrupt too, the temporary file is removed and a
    file that was there before stays as it was. A link is followed, not replaced; a folder, a pipe
    or a device is refused. The permissions of a file that is replaced are kept, and nobody else
    can read what is being written. With `durable=False` nothing is forced to the disk: ten
    times faster, and lost if the power fails within seconds.
    """
    target = os.path.realpath(path)
    directory = os.path.dirname(target)
    if not os.path.isdir(directory):
        raise FileNotFoundError(f"the directory of {path} must exist before a file is saved there")
    known = _permissions(target)
    temporary = os.path.join(directory, f".pinfactory-{secrets.token_hex(8)}.tmp")
    try:
        # The system takes the mask of the process off the permissions of a new file.
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
        handle = os.open(temporary, flags, 0o666 if known is None else 0o600)
        with open(handle, "wb") as stream:
            if known is not None:
                os.chmod(temporary, known)
            yield stream
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = target  # a full disk does not say of which file
        raise
    if durable:
        _sync_directory(directory)


def _permissions(target: str) -> int | None:
    """Return the permissions of the file that is there, None if nothing is."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise FileExistsError(f"{target} must be a file or not be there, but it is something else")
    return stat.S_IMODE(mode)


def _sync_directory(directory: str) -> None:
    """Make the rename durable, where the system can."""
    if os.name == "posix":
        with contextlib.suppress(OSError):  # some network file systems refuse
            handle = os.open(directory, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
