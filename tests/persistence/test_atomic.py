"""Writes happen wholly or not at all."""

import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap
import time
import zipfile

import numpy as np
import pytest
from file_contents import TREE, assert_identical

from pinfactory.persistence import (
    _atomic,
    load_tree,
    save_tree,
)


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["fsync", "replace"])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(path, monkeypatch, error, place):
    def fail(*_):
        raise error

    save_tree(path, TREE, kind="test")
    with monkeypatch.context() as patch:
        patch.setattr(_atomic.os, place, fail)
        with pytest.raises(type(error)):
            save_tree(path, {"other": 1}, kind="test")
    assert_identical(load_tree(path, TREE, kind="test"), TREE)
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_stops_midway_leaves_no_file(path, monkeypatch):
    written = []

    def fail(self, info, data):
        if written:
            raise OSError("disk full")
        written.append(write(self, info, data))

    write = zipfile.ZipFile.writestr
    monkeypatch.setattr(zipfile.ZipFile, "writestr", fail)
    with pytest.raises(OSError, match="disk full"):
        save_tree(path, TREE, kind="test")
    assert written
    assert list(path.parent.iterdir()) == []


def test_a_full_disk_leaves_the_old_file_and_is_said_of_which_file(path):
    save_tree(path, TREE, kind="test")
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most[1]))
    try:
        with pytest.raises(OSError, match=path.name):
            save_tree(path, {"large": np.arange(1000)}, kind="test")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert_identical(load_tree(path, TREE, kind="test"), TREE)
    assert list(path.parent.iterdir()) == [path]


def test_a_new_file_has_the_permissions_of_an_ordinary_one(path):
    old = os.umask(0o027)
    try:
        save_tree(path, TREE, kind="test")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_file_that_is_replaced_keeps_its_permissions(path):
    save_tree(path, TREE, kind="test")
    path.chmod(0o604)
    save_tree(path, TREE, kind="test")
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_a_private_file_is_private_while_it_is_replaced(path):
    save_tree(path, TREE, kind="test")
    path.chmod(0o600)
    with _atomic.atomic_write(path) as stream:
        stream.write(b"secret")
        stream.flush()
        (temporary,) = set(path.parent.iterdir()) - {path}
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600


def test_a_pipe_or_a_folder_is_not_replaced(tmp_path):
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder):
        with pytest.raises(FileExistsError, match=path.name):
            save_tree(path, TREE, kind="test")
    assert sorted(tmp_path.iterdir()) == [folder, pipe]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_is_followed_not_replaced(tmp_path):
    target, link = tmp_path / "step-10.pin", tmp_path / "latest.pin"
    link.symlink_to(target)
    save_tree(link, TREE, kind="test")
    assert link.is_symlink()
    assert_identical(load_tree(target, TREE, kind="test"), TREE)


def test_a_file_is_whole_whenever_its_writer_is_killed(path):
    script = """
        import sys, numpy as np
        from pinfactory.persistence import save_tree
        step = 0
        while True:
            save_tree(sys.argv[1], {"w": np.full(10**6, step)}, kind="test")
            if step == 0:
                print("ready", flush=True)
            step += 1
    """
    like = {"w": np.zeros(10**6, np.int64)}
    for delay in (0.013, 0.041, 0.097):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), str(path)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        values = np.unique(load_tree(path, like, kind="test")["w"])
        assert len(values) == 1
