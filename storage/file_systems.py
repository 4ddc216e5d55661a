"""Refuses a data folder on a network file system.

A writer looks for its successor's fence after each sync (`storage.epoch_files`). On a network file system, a machine
may answer from its cache that there is no such file, although another machine has made it. Then both confirm writes.
So brokers share a data folder only within one machine.

The kernel's mount table says on which file system a folder is. Only the kinds in `NETWORK` are refused, by name. Kinds
that share a folder of the host with a virtual machine (9p, virtiofs) are not in it, because all brokers may run in that
machine.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from storage.errors import StorageError

NETWORK: Final = frozenset(
    (
        *("nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda", "davfs"),
        *("beegfs", "ceph", "gfs2", "glusterfs", "gpfs", "lustre", "ocfs2", "orangefs", "pvfs2", "wekafs"),
        *("fuse.blobfuse", "fuse.blobfuse2", "fuse.ceph", "fuse.ceph-fuse", "fuse.davfs", "fuse.gcsfuse"),
        *("fuse.glusterfs", "fuse.goofys", "fuse.juicefs", "fuse.mfs", "fuse.moosefs", "fuse.mountpoint-s3"),
        *("fuse.rclone", "fuse.s3fs", "fuse.seaweedfs", "fuse.smbnetfs", "fuse.sshfs"),
    )
)
"""Kinds of file systems on which machines see each other's changes late."""

_MOUNT_TABLE: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class NetworkFileSystem(StorageError):
    """A folder of the broker is on a network file system. The message is for people."""

    def __init__(self, folder: Path, mount: "Mount") -> None:
        super().__init__(
            f"The folder {folder} is on the network file system {mount.source} of kind {mount.kind}, mounted at "
            f"{mount.point}. There a broker can miss that another one has taken over, and acknowledged messages get "
            "lost. Choose a --data-dir on a disk of this machine"
        )


class Mount(NamedTuple):
    """A mounted file system."""

    number: int
    parent: int
    """The number of the mount that holds the mount point."""
    point: Path
    """The folder where it is mounted."""
    kind: str
    """For example ext4."""
    source: str
    """What is mounted, for example a device or a server's folder."""


def require_local(folders: Iterable[Path], table: str) -> None:
    """Return if no folder is on a network file system, as far as the mount table says. Folders may be absent. Blocks.

    Raises:
        NetworkFileSystem: a folder is on one.
    """
    mounts = parse(table)
    for folder in folders:
        # An absent folder will be made in the nearest existing one.
        mount = mount_of(folder.resolve(), mounts)
        if mount is not None and mount.kind in NETWORK:
            raise NetworkFileSystem(folder, mount)


def mount_table() -> str:
    """The kernel's table of what this process sees mounted. Empty where the kernel has none. Blocks."""
    try:
        return _MOUNT_TABLE.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return ""


def parse(table: str) -> list[Mount]:
    """The mounts in the text of `/proc/self/mountinfo`. See proc_pid_mountinfo(5)."""
    mounts = []
    for line in table.splitlines():
        # A separator parts the fields of the mount from those of the file system.
        mount, _separator, file_system = line.partition(" - ")
        match mount.split(" "), file_system.split(" "):
            case [number, parent, _device, _root, point, *_options], [kind, source, *_more] if (
                number.isdecimal() and parent.isdecimal()
            ):
                mounts.append(Mount(int(number), int(parent), Path(_unescape(point)), kind, _unescape(source)))
    return mounts


def mount_of(path: Path, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that holds a path without symbolic links. None if the table does not say.

    As the kernel does, it goes down from the root and enters each mount that it meets. So a mount counts only if it is
    not hidden below another one.
    """
    mounts = list(mounts)
    numbers = {mount.number for mount in mounts}
    found = None
    inside = [mount for mount in mounts if mount.parent not in numbers - {mount.number}]
    while entered := [mount for mount in inside if path.is_relative_to(mount.point)]:
        found = min(entered, key=lambda mount: len(mount.point.parts))
        number = found.number
        inside = [mount for mount in mounts if mount.parent == number != mount.number]
    return found


def _unescape(field: str) -> str:
    """Undo the octal escapes of blanks and backslashes."""
    return _ESCAPED.sub(lambda escape: chr(int(escape[1], 8)), field)
