"""A simulated disk: `storage.files.Files` in memory, with the faults of a real one.

    disk = SimulatedFiles(seed=7)
    ... run the code under test with files=disk ...
    survivor = disk.crash()              # a power loss: what a restart would find
    survivor = disk.kill()               # only the process died

Faults, all decided by the seed:

- forgets: writes without a later `sync`, and names without a later `sync_dir`, may be lost in `crash()`.
- tears: any subset of an unsynced write's 512-byte sectors survives; each sector is either new or unchanged.
- reorders: a later unsynced write may survive without an earlier one; sizes match what survived. Of the changes in a
  directory, a prefix survives, as in journaling file systems.
- fails: `fail(operation, where=...)` makes the next matching call raise `OSError`. With `drops`, a failed `sync` loses
  some of the bytes, although reads still show them and later syncs succeed, as on Linux.
- loses power at the n-th operation: `lose_power_after(n)`; from then on every call raises `PowerLost`.
- flips bits and truncates: `flip(path, bit)`, `cut(path, size)`, on durable and unsynced bytes.
- is full: `set_capacity(bytes)`; a write that does not fit is made in part and raises `DiskFull`.
- stops: `process()` returns another process's view of the same disk; `stop()` holds that process before its next
  `run`, as SIGSTOP would, until `resume()`. `before` is called with every operation, so that another process can act
  between two operations.

A lock belongs to the file, not to its path, as with `flock`. Locks end with `kill()` and `crash()`. `die()`
releases those of one process, and `forget_locks()` all of them.

Synced data is kept. The disk does not invent or move sectors, and reads do not fail by themselves.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from errno import EIO, ENOSPC
from itertools import count
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple

import trio

from storage.files import AlreadyLocked, DiskFull

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SECTOR: Final = 512
"""The disk writes a sector whole or not at all."""

Hook = Callable[[str, Path], None]


class WritesDropped(OSError):
    """A sync failed, but the system treats the bytes as written."""


class PowerLost(OSError):
    """The simulated machine is off, so nothing that this process does reaches the disk."""


_inode_numbers = count()


@dataclass(eq=False)
class _Inode:
    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)
    number: int = field(default_factory=_inode_numbers.__next__)


@dataclass(eq=False)
class _Directory:
    entries: dict[str, _Inode] = field(default_factory=dict)
    durable: dict[str, _Inode] = field(default_factory=dict)
    unsynced: list[Callable[[dict[str, _Inode]], None]] = field(default_factory=list)

    def change(self, step: Callable[[dict[str, _Inode]], None]) -> None:
        step(self.entries)
        self.unsynced.append(step)


@dataclass(eq=False)
class _Fault:
    operation: str
    matches: Callable[[Path], bool]
    error: OSError


class _Disk:
    """The state that all processes of the simulated machine share."""

    def __init__(self, seed: int) -> None:
        self.capacity_bytes: int | None = None
        self.random = random.Random(seed)
        self.directories: dict[Path, _Directory] = {Path("/"): _Directory()}
        self.locks: list[_SimulatedLock] = []
        self.faults: list[_Fault] = []
        self.operations = 0
        self.power_lost_at: int | None = None

    def directory(self, path: Path) -> _Directory:
        found = self.directories.get(path)
        if found is None:
            raise FileNotFoundError(2, "no such directory", str(path))
        return found

    @property
    def used_bytes(self) -> int:
        inodes = {id(inode): inode for each in self.directories.values() for inode in each.entries.values()}
        return sum(len(inode.content) for inode in inodes.values())

    def fitting(self, grown: int) -> int:
        """Return how many of `grown` further bytes of a file fit."""
        if self.capacity_bytes is None or grown <= 0:
            return max(grown, 0)
        return max(0, min(grown, self.capacity_bytes - self.used_bytes))

    def inode(self, path: Path) -> _Inode:
        found = self.directory(path.parent).entries.get(path.name)
        if found is None:
            raise FileNotFoundError(2, "no such file", str(path))
        return found


class SimulatedFile:
    """See `storage.files.File`."""

    def __init__(self, owner: "SimulatedFiles", path: Path, inode: _Inode) -> None:
        self._owner = owner
        self._path = path
        self._inode = inode
        self._is_open = True

    @property
    def path(self) -> Path:
        return self._path

    def size(self) -> int:
        return len(self._inode.content)

    def read_at(self, offset: int, length: int) -> bytes:
        self._step("read")
        return bytes(self._inode.content[offset : offset + length])

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        kept = bytes(data)
        try:
            self._step("write")
        except PowerLost:
            # The write during the power loss may be on the disk in part, like any unsynced one.
            if self._owner.is_first_loss():
                self._apply(offset, kept)
            raise
        grown = offset + len(kept) - self.size()
        lacking = grown - self._owner.fitting(grown)
        self._apply(offset, kept[: len(kept) - max(0, lacking)])
        if lacking > 0:
            raise DiskFull(ENOSPC, "simulated full disk", str(self._path))

    def write_pieces_at(self, offset: int, pieces: Sequence[bytes]) -> None:
        self.write_at(offset, b"".join(pieces))

    def sync(self) -> None:
        try:
            self._step("sync")
        except WritesDropped:
            # The pages are marked clean although the disk refused them, so a later sync "succeeds".
            _settle(self._owner.random, self._inode, keep=0.5)
            self._inode.unsynced.clear()
            raise
        # Only unsynced bytes are written. What an earlier failed sync dropped stays lost.
        for offset, data in self._inode.unsynced:
            _write(self._inode.durable, offset, data)
        self._inode.unsynced.clear()

    def truncate(self, size: int) -> None:
        # For simplicity a truncation is durable at once. So this disk cannot show what a lost truncation causes.
        self._step("truncate")
        for kept in (self._inode.content, self._inode.durable):
            _resize(kept, size)
        self._inode.unsynced = [
            (offset, data[: max(0, size - offset)]) for offset, data in self._inode.unsynced if offset < size
        ]

    def preallocate(self, size: int) -> None:
        before = self.size()
        if size > before:
            try:
                self.write_at(before, bytes(size - before))
            except DiskFull:
                self.truncate(before)
                raise
        self.sync()

    def close(self) -> None:
        self._is_open = False

    def _apply(self, offset: int, data: bytes) -> None:
        _write(self._inode.content, offset, data)
        self._inode.unsynced.append((offset, data))

    def _step(self, operation: str) -> None:
        assert self._is_open, f"{operation} on the closed file {self._path}"
        self._owner.step(operation, self._path)


class _SimulatedLock:
    def __init__(self, owner: "SimulatedFiles", disk: _Disk, inode: _Inode, *, shared: bool) -> None:
        self._disk = disk
        self.owner = owner
        self.inode = inode
        self.shared = shared

    @property
    def name(self) -> str:
        return f"simulated:{self.inode.number}"

    def close(self) -> None:
        if self in self._disk.locks:
            self._disk.locks.remove(self)


class SimulatedFiles:
    """See the module's docstring. It is one process's view; `process()` makes another one."""

    def __init__(self, *, seed: int = 0) -> None:
        self._disk = _Disk(seed)
        self._gate = trio.Event()
        self._gate.set()
        self._saw_loss = False
        self.before: Hook | None = None

    @property
    def random(self) -> random.Random:
        return self._disk.random

    @property
    def operations(self) -> int:
        """The number of operations of all processes so far, as `lose_power_after` counts them."""
        return self._disk.operations

    # -- storage.files.Files

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> SimulatedFile:
        self.step("open", path)
        directory = self._disk.directory(path.parent)
        inode = directory.entries.get(path.name)
        if inode is not None and create and exclusive:
            raise FileExistsError(17, "exists", str(path))
        if inode is None:
            if not create:
                raise FileNotFoundError(2, "no such file", str(path))
            inode = _Inode()
            self._add_name(path, inode)
        return SimulatedFile(self, path, inode)

    def names(self, directory: Path) -> list[str]:
        self.step("names", directory)
        below = {path.name for path in self._disk.directories if path.parent == directory and path != directory}
        return sorted(set(self._disk.directory(directory).entries) | below)

    def exists(self, path: Path) -> bool:
        self.step("exists", path)
        if path in self._disk.directories:
            return True
        parent = self._disk.directories.get(path.parent)
        return parent is not None and path.name in parent.entries

    def make_dir(self, path: Path) -> None:
        self.step("make_dir", path)
        for each in (path, *path.parents):
            parent = self._disk.directories.get(each.parent)
            if each not in self._disk.directories and parent is not None and each.name in parent.entries:
                raise NotADirectoryError(20, "it is a file", str(each))
        for each in (path, *path.parents):
            self._disk.directories.setdefault(each, _Directory())

    def rename(self, source: Path, target: Path) -> None:
        self.step("rename", source)
        assert source.parent == target.parent, "renames stay in one directory, so that they are one step"
        self._disk.inode(source)

        def move(entries: dict[str, _Inode]) -> None:
            entries[target.name] = entries.pop(source.name)

        self._disk.directory(source.parent).change(move)

    def link(self, source: Path, target: Path) -> None:
        self.step("link", source)
        inode = self._disk.inode(source)
        if target.name in self._disk.directory(target.parent).entries:
            raise FileExistsError(17, "exists", str(target))
        self._add_name(target, inode)

    def remove(self, path: Path) -> None:
        self.step("remove", path)
        self._disk.inode(path)

        def unlink(entries: dict[str, _Inode]) -> None:
            del entries[path.name]

        self._disk.directory(path.parent).change(unlink)

    def sync_dir(self, path: Path) -> None:
        self.step("sync_dir", path)
        directory = self._disk.directory(path)
        directory.durable = dict(directory.entries)
        directory.unsynced.clear()

    def lock(self, path: Path, *, shared: bool = False) -> _SimulatedLock:
        self.step("lock", path)
        inode = self._disk.directory(path.parent).entries.get(path.name)
        if inode is None:
            inode = _Inode()
            self._add_name(path, inode)
        if any(held.inode is inode and not (held.shared and shared) for held in self._disk.locks):
            raise AlreadyLocked(11, "the lock is held elsewhere", str(path))
        lock = _SimulatedLock(self, self._disk, inode, shared=shared)
        self._disk.locks.append(lock)
        return lock

    def _add_name(self, path: Path, inode: _Inode) -> None:
        if not self.fitting(1):
            raise DiskFull(ENOSPC, "simulated full disk", str(path))

        def add(entries: dict[str, _Inode]) -> None:
            entries[path.name] = inode

        self._disk.directory(path.parent).change(add)

    async def run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        await trio.lowlevel.checkpoint()
        while not self._gate.is_set():
            await self._gate.wait()
        return call(*args)

    async def run_urgent(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        return await self.run(call, *args)

    async def look(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        return await self.run(call, *args)

    # -- faults

    def process(self) -> "SimulatedFiles":
        """Return another process's view of this disk, with its own `stop`, `resume` and `before`."""
        other = SimulatedFiles()
        other._disk = self._disk
        return other

    def stop(self) -> None:
        """Hold this process before its next `run`, as SIGSTOP would."""
        if self._gate.is_set():
            self._gate = trio.Event()

    def resume(self) -> None:
        """Let it continue."""
        self._gate.set()

    def die(self) -> None:
        """Stop this process and release its locks, as SIGKILL does. `resume` lets its tasks end with the test."""
        self.stop()
        self._disk.locks = [lock for lock in self._disk.locks if lock.owner is not self]

    def forget_locks(self) -> None:
        """Forget every lock, as when the locks lived on another machine."""
        self._disk.locks.clear()

    def fail(
        self,
        operation: str,
        *,
        where: Callable[[Path], bool] = lambda _path: True,
        drops: bool = False,
        code: int = EIO,
    ) -> None:
        """Make the next such operation on a matching path raise `OSError`. With `drops`, a sync also loses bytes."""
        error = WritesDropped(code, "simulated fault") if drops else OSError(code, "simulated fault")
        self._disk.faults.append(_Fault(operation, where, error))

    def fitting(self, grown: int) -> int:
        """Return how many of `grown` further bytes of a file fit on the disk."""
        return self._disk.fitting(grown)

    @property
    def used_bytes(self) -> int:
        """Return the size of all files."""
        return self._disk.used_bytes

    def set_capacity(self, capacity_bytes: int | None) -> None:
        """Limit the total size of all files; None removes the limit. Existing files stay."""
        self._disk.capacity_bytes = capacity_bytes

    def lose_power_after(self, operations: int) -> None:
        """After this many more operations, make every operation raise `PowerLost`."""
        self._disk.power_lost_at = self._disk.operations + operations

    def flip(self, path: Path, bit: int) -> None:
        """Flip one bit of a file, as a failing disk does; `bit` counts from the file's start."""
        inode = self._disk.inode(path)
        for kept in (inode.content, inode.durable):
            if bit // 8 < len(kept):
                kept[bit // 8] ^= 1 << bit % 8

    def cut(self, path: Path, size: int) -> None:
        """Shorten a file, as a damaged file system does."""
        inode = self._disk.inode(path)
        for kept in (inode.content, inode.durable):
            del kept[size:]

    def content(self, path: Path) -> bytes:
        """Return a file's bytes as a process sees them now."""
        return bytes(self._disk.inode(path).content)

    def crash(self, *, keep: float | None = None) -> "SimulatedFiles":
        """Return the disk after a power loss.

        `keep` is the chance of each unsynced sector to survive. By default it is drawn for each crash.
        """
        rng = self._disk.random
        chance = rng.choice((0.0, 0.5, 0.9, 1.0)) if keep is None else keep
        after = SimulatedFiles(seed=rng.getrandbits(32))
        survivors: dict[int, _Inode] = {}
        for path, directory in self._disk.directories.items():
            entries = dict(directory.durable)
            for step in directory.unsynced:
                if rng.random() >= chance:
                    break
                step(entries)
            kept = _Directory()
            for name, inode in entries.items():
                if id(inode) not in survivors:
                    content = _survivor(rng, inode, chance)
                    survivors[id(inode)] = _Inode(bytearray(content), bytearray(content))
                kept.entries[name] = survivors[id(inode)]
            kept.durable = dict(kept.entries)
            after._disk.directories[path] = kept
        return after

    def kill(self) -> "SimulatedFiles":
        """Return the disk after the death of the process alone: the operating system keeps all writes."""
        after = SimulatedFiles(seed=self._disk.random.getrandbits(32))
        after._disk.directories = self._disk.directories
        return after

    # -- for the files

    def step(self, operation: str, path: Path) -> None:
        """Count an operation, and raise the error of a fault that is due."""
        if self.before is not None:
            self.before(operation, path)
        disk = self._disk
        disk.operations += 1
        if disk.power_lost_at is not None and disk.operations > disk.power_lost_at:
            raise PowerLost(EIO, "the power is gone", str(path))
        for fault in disk.faults:
            if fault.operation == operation and fault.matches(path):
                disk.faults.remove(fault)
                raise fault.error

    def is_first_loss(self) -> bool:
        """Return True once, for the operation that the power loss interrupted."""
        first = not self._saw_loss
        self._saw_loss = True
        return first


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if len(content) > size:
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _survivor(rng: random.Random, inode: _Inode, chance: float) -> bytes:
    """Return what survives: each sector after some of its unsynced writes in order, or in its synced state."""
    sectors: dict[int, list[tuple[int, bytes]]] = {}
    for offset, data in inode.unsynced:
        end = offset + len(data)
        while offset < end:
            stop = min(end, (offset // SECTOR + 1) * SECTOR)
            sectors.setdefault(offset // SECTOR, []).append(
                (offset, data[len(data) - (end - offset) :][: stop - offset])
            )
            offset = stop
    content = bytearray(inode.durable)
    for pieces in sectors.values():
        if rng.random() >= chance:
            continue
        survivors = len(pieces) if chance == 1.0 else rng.randint(1, len(pieces))
        for offset, piece in pieces[:survivors]:
            _write(content, offset, piece)
    return bytes(content)


def _settle(rng: random.Random, inode: _Inode, *, keep: float) -> None:
    inode.durable[:] = _survivor(rng, inode, keep)
