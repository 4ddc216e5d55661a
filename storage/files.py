"""The disk, as the rest of the room sees it. Only this module touches it.

Everything here blocks. Callers use `Files.run`, which moves the call off Trio's thread. They put operations that belong
together (write, sync, check the fence) into one function, because a change of threads costs as much as a small write.
`Files` is a `Protocol`, because there is a second disk: `tests/support/disk.py` forgets, tears and reorders unsynced
writes. So recovery is tested against everything that disks may do.

What is durable when: bytes of a file after `File.sync`; names (creation, link, rename, removal) after `Files.sync_dir`
of their directory; nothing else.

Left out on purpose: memory mapping (its faults arrive as signals), and appending at "the end" (every write names its
offset, so repeating it is harmless).
"""

import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, TypeVarTuple

import trio

if TYPE_CHECKING:
    from outcome import Outcome

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

DISK_CALLS_MAX: Final = 8
"""Calls of `Files.run` that run at once. Further calls wait for their turn."""

_PIECES_MAX: Final = 1024
"""As many as one system call takes."""

_ZEROS_AT_ONCE: Final = 1024 * 1024
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class DiskFull(OSError):
    """The disk has no space for the addition. The existing contents are unchanged, and the same call may succeed later.

    Raised when a file is made or grows, never by `sync`. A sync that fails for lack of space has lost bytes, as any
    failed sync has.
    """


class AlreadyLocked(OSError):
    """Another process, or another part of this one, holds the lock."""


class Lock(Protocol):
    """A held lock. It belongs to the file, not to its path: it stays held when the file gets another name or none."""

    @property
    def name(self) -> str:
        """Identifies the locked file on this machine until it restarts. A copy of the file has another name."""

    def close(self) -> None:
        """Release it. Idempotent."""


class File(Protocol):
    """One open file. Offsets and lengths are in bytes. All methods block and raise the `OSError` of the disk."""

    @property
    def path(self) -> Path:
        """The path it was opened with."""

    def size(self) -> int:
        """Its current length."""

    def read_at(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`. Fewer only at the end of the file."""

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data`. Not durable before `sync`. A gap before `offset` reads as zeros.

        Raises:
            DiskFull: part of `data` may have been written behind the earlier end of the file.
        """

    def write_pieces_at(self, offset: int, pieces: Sequence[bytes]) -> None:
        """Write all the pieces, one behind the other; otherwise as `write_at`."""

    def sync(self) -> None:
        """Return once everything written before is durable.

        After an error, nothing written since the last sync is durable.
        """

    def truncate(self, size: int) -> None:
        """Cut or extend with zeros to `size`. Durable after `sync`."""

    def preallocate(self, size: int) -> None:
        """Fill with zeros from the end up to `size`, durably, so that later writes there sync without new blocks.

        Such writes never lack space, unless the file system writes each time to another place.

        Raises:
            DiskFull: the file is as long as before.
        """

    def close(self) -> None:
        """Close the descriptor. Syncs nothing. Idempotent."""


class Files(Protocol):
    """A disk."""

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> File:
        """Open for reading and writing.

        `create` makes the file if it is absent. `exclusive` with `create` raises `FileExistsError` if it exists, which
        decides between two concurrent callers.

        Raises:
            FileNotFoundError: it is absent and `create` is False.
            DiskFull: it cannot be made.
        """

    def names(self, directory: Path) -> list[str]:
        """The names in the directory, sorted."""

    def exists(self, path: Path) -> bool:
        """True for a file or directory."""

    def make_dir(self, path: Path) -> None:
        """Make the directory and its parents, durably. No effect if it exists.

        Raises:
            NotADirectoryError: a file has its name, or that of a parent.
        """

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing an existing one, in one step."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, in one step. The file keeps its first name.

        A file that is written and synced before it is linked appears under `target` whole or not at all.

        Raises:
            FileExistsError: `target` exists, which decides between two concurrent callers.
            FileNotFoundError: `source` is absent.
            DiskFull: the directory cannot take the name.
        """

    def remove(self, path: Path) -> None:
        """Remove a file's name. Open descriptors can still read it."""

    def sync_dir(self, path: Path) -> None:
        """Return once every creation, link, rename and removal in this directory is durable."""

    def lock(self, path: Path, *, shared: bool = False) -> Lock:
        """Lock this file, and make it if it is absent. The operating system releases the lock when the process ends.

        Any number of callers may hold a `shared` lock at once. Otherwise the lock has one holder.

        Raises:
            AlreadyLocked: another holder has it, and one of the two locks is not shared.
            DiskFull: the file cannot be made.
        """

    async def run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a blocking call off Trio's thread. Once begun, it finishes and returns its result, even if cancelled."""
        ...

    async def run_urgent(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """As `run`, for a call that a client waits for. It never queues behind the calls of `run`."""
        ...

    async def look(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a blocking call that only reads. If its caller is cancelled, nobody waits for it, however long it takes.

        One such call runs at a time. So a disk that does not answer costs one thread.
        """
        ...


class DiskFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: Path, flags: int) -> None:
        self._path = path
        with _telling_full(path):
            self._fd = os.open(path, flags, 0o644)

    @property
    def path(self) -> Path:
        """See `File`."""
        return self._path

    def size(self) -> int:
        """See `File`."""
        return os.fstat(self._fd).st_size

    def read_at(self, offset: int, length: int) -> bytes:
        """See `File`."""
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        # The system may return less than asked for before the end of the file.
        parts = [data]
        done = len(data)
        while done < length:
            data = os.pread(self._fd, length - done, offset + done)
            if not data:
                break
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """See `File`."""
        with _telling_full(self._path):
            done = os.pwrite(self._fd, data, offset)
            total = len(data)
            while done < total:
                done += os.pwrite(self._fd, memoryview(data)[done:], offset + done)

    def write_pieces_at(self, offset: int, pieces: Sequence[bytes]) -> None:
        """See `File`."""
        for start in range(0, len(pieces), _PIECES_MAX):
            some = pieces[start : start + _PIECES_MAX]
            with _telling_full(self._path):
                done = os.pwritev(self._fd, some, offset)
            size = sum(map(len, some))
            if done < size:
                # A signal or a full disk stopped it. To write the rest tells.
                self.write_at(offset + done, memoryview(b"".join(some))[done:])
            offset += size

    def sync(self) -> None:
        """See `File`."""
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        """See `File`."""
        with _telling_full(self._path):
            os.ftruncate(self._fd, size)

    def preallocate(self, size: int) -> None:
        """See `File`. Reserves the space first, so that a full disk refuses before anything is written.

        Then it writes zeros, because blocks that are only reserved cost a file-system journal commit at their first
        sync.
        """
        before = offset = self.size()
        try:
            if offset < size:
                with _telling_full(self._path):
                    self._reserve(offset, size - offset)
            zeros = bytes(_ZEROS_AT_ONCE)
            while offset < size:
                piece = min(_ZEROS_AT_ONCE, size - offset)
                self.write_at(offset, zeros if piece == _ZEROS_AT_ONCE else zeros[:piece])
                offset += piece
        except DiskFull:
            os.ftruncate(self._fd, before)
            raise
        os.fsync(self._fd)

    def _reserve(self, offset: int, length: int) -> None:
        try:
            os.posix_fallocate(self._fd, offset, length)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            # This file system cannot reserve. The write finds out.

    def close(self) -> None:
        """See `File`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DiskLock:
    """A lock by `flock`."""

    __slots__ = ("_fd", "name")

    def __init__(self, path: Path, *, shared: bool, create: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        with _telling_full(path):
            self._fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as held:
            os.close(self._fd)
            self._fd = -1
            raise AlreadyLocked(held.errno, "the lock is held elsewhere", str(path)) from held
        found = os.fstat(self._fd)
        # The boot's id, because device numbers are assigned anew at each boot.
        self.name = f"{_boot_id()}:{found.st_dev}:{found.st_ino}"
        """See `Lock`."""

    def close(self) -> None:
        """See `Lock`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        # Not Linux: no lock is ever recognised as the same one.
        return secrets.token_hex(16)


def _goes_on(_raise_cancel: object) -> trio.lowlevel.Abort:
    """A call that a thread has begun cannot be cancelled."""
    return trio.lowlevel.Abort.FAILED


class DiskFiles:
    """The operating system's files, through worker threads."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(DISK_CALLS_MAX)
        self._looking = trio.CapacityLimiter(1)

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> DiskFile:
        """See `Files`."""
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        return DiskFile(path, flags)

    def names(self, directory: Path) -> list[str]:
        """See `Files`."""
        return sorted(item.name for item in directory.iterdir())

    def exists(self, path: Path) -> bool:
        """See `Files`."""
        return path.exists()

    def make_dir(self, path: Path) -> None:
        """See `Files`."""
        if path.is_dir():
            return
        self.make_dir(path.parent)
        try:
            path.mkdir(exist_ok=True)
        except FileExistsError as file:
            raise NotADirectoryError(errno.ENOTDIR, "it is a file", str(path)) from file
        self.sync_dir(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        """See `Files`."""
        with _telling_full(target):
            source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """See `Files`."""
        with _telling_full(target):
            target.hardlink_to(source)

    def remove(self, path: Path) -> None:
        """See `Files`."""
        path.unlink()

    def sync_dir(self, path: Path) -> None:
        """See `Files`."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: Path, *, shared: bool = False) -> DiskLock:
        """See `Files`."""
        return DiskLock(path, shared=shared, create=True)

    async def run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """See `Files`."""
        return await trio.to_thread.run_sync(call, *args, limiter=self._limiter)

    async def run_urgent(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """See `Files`."""
        # `trio.to_thread` also takes a limiter's token, copies the context and renames the thread. A lone commit feels
        # each of these, so this asks for a thread itself.
        task = trio.lowlevel.current_task()
        token = trio.lowlevel.current_trio_token()

        def deliver(result: "Outcome[T]") -> None:
            token.run_sync_soon(trio.lowlevel.reschedule, task, result)

        await trio.lowlevel.checkpoint_if_cancelled()
        trio.lowlevel.start_thread_soon(partial(call, *args), deliver)
        result: T = await trio.lowlevel.wait_task_rescheduled(_goes_on)
        return result

    async def look(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """See `Files`."""
        return await trio.to_thread.run_sync(call, *args, limiter=self._looking, abandon_on_cancel=True)


class ReadOnlyFiles(DiskFiles):
    """The same files for readers. Every call that would change a file or directory raises."""

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> DiskFile:
        """See `Files`. The opened file refuses writes."""
        if create or exclusive:
            raise _read_only(path)
        return DiskFile(path, os.O_RDONLY | os.O_CLOEXEC)

    def make_dir(self, path: Path) -> None:
        """Refused."""
        raise _read_only(path)

    def rename(self, source: Path, target: Path) -> None:
        """Refused."""
        raise _read_only(source)

    def link(self, source: Path, target: Path) -> None:
        """Refused."""
        raise _read_only(source)

    def remove(self, path: Path) -> None:
        """Refused."""
        raise _read_only(path)

    def lock(self, path: Path, *, shared: bool = False) -> DiskLock:
        """See `Files`. The file must exist.

        Raises:
            AlreadyLocked: another holder has it, and one of the two locks is not shared.
            FileNotFoundError: there is no such file.
        """
        return DiskLock(path, shared=shared, create=False)


@contextmanager
def _telling_full(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(error.errno, error.strerror, str(path)) from error
        raise


def _read_only(path: Path) -> OSError:
    return PermissionError(errno.EROFS, "the file is open for reading only", str(path))
