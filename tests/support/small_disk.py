"""A small real file system that a test fills and empties.

    with small_disk(tmp_path, 64 * 1024 * 1024) as disk, running_broker(disk / "data") as broker:
        with space_taken(disk):
            ...                     # the disk is full

Only root may mount one. Without root rights a test fails with a message, because a suite that skips it shows nothing
about real disks.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def small_disk(folder: Path, size: int, *, name: str = "disk") -> Iterator[Path]:
    """Mount an empty file system of this size, in memory, on a new folder of this name in `folder`.

    Raises:
        AssertionError: it cannot be mounted.
    """
    disk = folder / name
    disk.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    assert not mounted.returncode, f"a small file system is needed, which only root may mount: {mounted.stderr}"
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def enlarge(disk: Path, size: int) -> None:
    """Set a larger size."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Take all free space, with one file."""
    path = disk / "somebody-elses"
    with path.open("wb") as file:
        while (free := os.statvfs(disk)).f_bavail:
            with suppress(OSError):  # Somebody else took some of it meanwhile.
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), free.f_bavail * free.f_frsize)
    return path


@contextmanager
def space_taken(disk: Path) -> Iterator[None]:
    """Take all free space during the block."""
    path = fill(disk)
    try:
        yield
    finally:
        path.unlink()
