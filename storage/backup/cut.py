"""A consistent cut of a data folder whose brokers go on working: the files of a backup, at one moment.

The cut is a folder of hard links beside the data, `<data>/backup-cut`. Its own are only copies of fences, the
metadata and the list of files. Nothing in it goes when brokers remove their files. Another program copies it and
removes it.

A backup must have everything that its metadata relies on. And it must have no entry of a transaction that its metadata
does not know, because such an entry would be shown as committed. Both hold if the lengths of all files are noted while
the metadata stands still:

- An entry is appended only after its transaction's op record is in the metadata. So an entry with a noted length has
  its record in the metadata of this moment, or needs none.
- Whatever the metadata says was confirmed before this moment. So it is in the noted lengths.

Entries that are appended during this moment may be in the cut or not. Their sends are not confirmed before its begin.

| step | what                                                                | the metadata  |
|------|---------------------------------------------------------------------|---------------|
| 1    | link the journals' files, then the ledgers' files                   | goes on       |
| 2    | note the lengths of all ledger files; link what is new              | stands still  |
| 3    | go on to the ends of the journals                                   | stands still  |
| 4    | write the state of this moment as a snapshot, and the list of files | goes on       |

A broker frees a journal file once the ledger files have its entries. So the journals are linked before the lengths of
the ledgers are noted. And a ledger file holds only what a journal held before. So a journal's end is noted after those
lengths. A batch that is only half in a ledger file then is in the journal.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol, runtime_checkable

import orjson
import trio

from storage.backup.journal_ends import JournalEnd, advance, beginning_of
from storage.backup.manifest import MANIFEST, BackedUpFile, Manifest
from storage.broker_home import journal_dir
from storage.clock import WallClock
from storage.epoch_files import EpochFiles
from storage.errors import FenceDamaged, JournalFileDamaged, StorageError
from storage.fence import EpochRecord, read_epochs
from storage.files import DiskFull, Files
from storage.identity import read_identity
from storage.journal_files import JournalName, journal_names
from storage.journal_records import JOURNALS
from storage.metadata import snapshots
from storage.metadata.records import EPOCHS_LEVEL
from storage.metadata.snapshots import SnapshotName, View
from storage.metadata.store import MetadataStore, starting_with
from storage.sector import SECTOR

CUT_FOLDER: Final = "backup-cut"
SNAPSHOT_LEVEL: Final = EPOCHS_LEVEL - 1
"""A snapshot of this level needs no fence of an epoch, and no log that goes on behind it."""


class CutFailed(StorageError):
    """No cut could be made. The text says why and what to do."""

    retriable = True


class CutExists(StorageError):
    """There is a cut already."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder} is there: another backup is running, or one was killed. If none is running, replace it with "
            "`tidewire backup --replace`."
        )


@runtime_checkable
class StandsStill(Protocol):
    """A metadata store that can stop deciding for a moment, on the process that decides."""

    def at_one_moment(
        self, note: Callable[[], Awaitable[None]], *, feature_level: int
    ) -> AbstractAsyncContextManager[View]:
        """The state of one moment, for as long as the context. Nothing is decided while `note` runs.

        Raises:
            StoreUnavailable: this process does not decide.
        """
        ...


class BackupCuts:
    """Makes the cuts of one data folder, one at a time."""

    def __init__(self, files: Files, data_dir: Path, metadata: MetadataStore, now_ms: WallClock) -> None:
        self._files = files
        self._data_dir = data_dir
        self._metadata = metadata
        self._now_ms = now_ms
        self._making = trio.Lock()

    @property
    def folder(self) -> Path:
        """Where the cut is."""
        return self._data_dir / CUT_FOLDER

    @property
    def can_be_cut(self) -> bool:
        """Whether a broker decides for the metadata, so that it can stop for a moment. Nobody can stop etcd."""
        return isinstance(self._metadata, StandsStill)

    async def make(self, *, replaces: bool = False) -> Manifest:
        """Make the cut in `folder`; `replaces` removes an earlier one. Durable is only what it links.

        Raises:
            CutExists: there is one.
            CutFailed: this folder cannot be cut, a journal in it is damaged, the disk is full, or something changed
                meanwhile.
            StoreUnavailable: this process does not decide for the metadata.
        """
        async with self._making:
            if not replaces and await self._files.run(self._files.exists, self.folder / MANIFEST):
                raise CutExists(self.folder)
            try:
                return await self._make()
            except DiskFull as full:
                await self._files.run(remove_cut, self._files, self._data_dir)
                raise CutFailed(
                    f"The disk is full: {full.filename} cannot be written. A backup needs as much space in the data "
                    "folder as the metadata takes. Free space, and try again."
                ) from full

    async def _make(self) -> Manifest:
        assert isinstance(self._metadata, StandsStill), "the caller asked `can_be_cut`"
        identity = await self._files.run(read_identity, self._files, self._data_dir)
        assert identity is not None, "a running broker's folder has one"
        await self._require_one_folder(identity.folder)
        links = await self._files.run(_Links.begin, self._files, self._data_dir)
        moment = partial(self._files.run, links.note)
        async with self._metadata.at_one_moment(moment, feature_level=SNAPSHOT_LEVEL) as view:
            made_ms = self._now_ms()
            name = SnapshotName(view.point.sequence, 0)
            folder = self.folder / "metadata"
            size = await snapshots.write(self._files, folder, view, name.epoch)
        await self._files.run(self._files.rename, folder / name.unfinished, folder / str(name))
        files = (BackedUpFile(f"metadata/{name}", size, size), *links.listed())
        place = str(self._data_dir.absolute())
        manifest = Manifest(identity.folder, identity.cluster, place, made_ms, name.sequence, files)
        await self._files.run(_write, self._files, self.folder / MANIFEST, manifest.encode())
        return manifest

    async def _require_one_folder(self, folder: str) -> None:
        for record in await self._metadata.scan(*starting_with(JOURNALS)):
            found = orjson.loads(record.value)
            if found["folder"] != folder:
                raise CutFailed(
                    f"Broker {record.key.removeprefix(JOURNALS)} keeps its data in another folder, {found['path']}. A "
                    "backup is of one folder. Stop the cluster and copy all folders."
                )


class _LinkedJournal(NamedTuple):
    life: JournalName
    record: EpochRecord
    end: JournalEnd
    lengths: dict[int, int]


class _Links:
    """The links, as they are made. Everything blocks."""

    def __init__(self, files: Files, data_dir: Path) -> None:
        self._files = files
        self._data_dir = data_dir
        self._cut = data_dir / CUT_FOLDER
        self._linked: set[str] = set()
        self._journals: dict[str, _LinkedJournal] = {}
        self._fences: list[BackedUpFile] = []
        self._ledgers: list[BackedUpFile] = []

    @classmethod
    def begin(cls, files: Files, data_dir: Path) -> "_Links":
        """Remove an earlier cut, and make all links that can be made while the metadata goes on."""
        remove_cut(files, data_dir)
        links = cls(files, data_dir)
        for folder in (links._cut, links._cut / "metadata", links._cut / "ledgers"):
            files.make_dir(folder)
        for broker in _brokers(files, data_dir):
            if files.exists(journal_dir(data_dir, broker)):
                links._link_journal(broker)
        links._link_ledgers()
        return links

    def note(self) -> None:
        """Note the lengths of this moment.

        Raises:
            CutFailed: a journal is damaged, or another process took it over.
        """
        # What was removed since step 1 is not in the metadata of this moment.
        self._ledgers = [self._noted(f"ledgers/{name}") for name in self._link_ledgers()]
        for broker, journal in self._journals.items():
            self._link_files(broker, journal.life, journal.record.first)
            end, passed = self._advance(broker, journal.life, journal.end)
            self._journals[broker] = journal._replace(end=end, lengths={**journal.lengths, **passed})
            if self._newest_begun(broker) != (journal.life.epoch, journal.life.stream):
                raise CutFailed(f"Another process took over the journal of broker {broker} meanwhile. Try again.")

    def listed(self) -> list[BackedUpFile]:
        """What was noted."""
        found = [*self._ledgers, *self._fences]
        for broker, journal in self._journals.items():
            for name in journal_names(self._files, self._journal_folder(broker)):
                noted = self._noted(f"brokers/{broker}/journal/{name}")
                found.append(noted._replace(length=journal.lengths.get(name.number, SECTOR)))
        return found

    def _link_ledgers(self) -> list[str]:
        """Link what is not linked. Returns the names of what is there now and linked."""
        source, target = self._data_dir / "ledgers", self._cut / "ledgers"
        # An index sorts before its ledger, so it never ends behind the noted end of that.
        names = [name for name in self._files.names(source) if not name.endswith("-new")]
        for name in names:
            if name not in self._linked:
                # It may have been removed since.
                with suppress(FileNotFoundError):
                    self._files.link(source / name, target / name)
                    self._linked.add(name)
        return [name for name in names if name in self._linked]

    def _link_journal(self, broker: str) -> None:
        folder = self._journal_folder(broker)
        self._files.make_dir(folder.parent.parent)
        self._files.make_dir(folder.parent)
        self._files.make_dir(folder)
        source = journal_dir(self._data_dir, broker)
        while True:
            try:
                epochs = read_epochs(self._files, source)
            except FenceDamaged as damaged:
                raise CutFailed(f"The journal of broker {broker} cannot be backed up: {damaged}") from damaged
            begun = [(epoch, record) for epoch, record in epochs.items() if record.has_begun]
            for epoch, record in epochs.items():
                path = EpochFiles(self._files, folder).path(epoch)
                _write(self._files, path, record.encode())
            if not begun:
                break
            epoch, record = begun[-1]
            life = JournalName(epoch, record.first, record.owner.stream)
            if self._link_files(broker, life, record.first, record.last):
                end, passed = self._advance(broker, life, beginning_of(record))
                self._journals[broker] = _LinkedJournal(life, record, end, passed)
                break
            # A file was freed since the fence was read. The fence says so now.
        self._fences += [
            self._noted(f"brokers/{broker}/journal/{EpochFiles(self._files, folder).path(epoch).name}")
            for epoch in epochs
        ]

    def _advance(self, broker: str, life: JournalName, end: JournalEnd) -> tuple[JournalEnd, dict[int, int]]:
        try:
            return advance(self._files, self._journal_folder(broker), life, end)
        except JournalFileDamaged as damaged:
            raise CutFailed(
                f"The journal of broker {broker} is damaged, and cannot be backed up: {damaged}"
            ) from damaged

    def _link_files(self, broker: str, life: JournalName, first: int, last: int = -1) -> bool:
        """Link the files of this life from `first` on. Returns whether all up to `last` are linked."""
        source, target = journal_dir(self._data_dir, broker), self._journal_folder(broker)
        for name in journal_names(self._files, source):
            if (name.epoch, name.stream) == (life.epoch, life.stream) and name.number >= first:
                with suppress(FileNotFoundError, FileExistsError):
                    self._files.link(source / str(name), target / str(name))
        there = {name.number for name in journal_names(self._files, target)}
        return set(range(first, last + 1)) <= there

    def _newest_begun(self, broker: str) -> tuple[int, int]:
        epochs = read_epochs(self._files, journal_dir(self._data_dir, broker))
        return max((epoch, record.owner.stream) for epoch, record in epochs.items() if record.has_begun)

    def _journal_folder(self, broker: str) -> Path:
        return journal_dir(self._cut, broker)

    def _noted(self, path: str) -> BackedUpFile:
        file = self._files.open(self._cut / path)
        try:
            size = file.size()
        finally:
            file.close()
        return BackedUpFile(path, size, size)


def remove_cut(files: Files, data_dir: Path) -> None:
    """Remove the cut's files, if there is one. Empty folders stay. Blocks."""
    cut = data_dir / CUT_FOLDER
    if not files.exists(cut):
        return
    # The list first: without it, nobody takes the rest for a cut.
    with suppress(FileNotFoundError):
        files.remove(cut / MANIFEST)
    for folder in (cut / "metadata", cut / "ledgers", *(journal_dir(cut, broker) for broker in _brokers(files, cut))):
        for name in files.names(folder) if files.exists(folder) else []:
            files.remove(folder / name)


def _brokers(files: Files, data_dir: Path) -> list[str]:
    brokers = data_dir / "brokers"
    return files.names(brokers) if files.exists(brokers) else []


def _write(files: Files, path: Path, data: bytes) -> None:
    file = files.open(path, create=True)
    try:
        file.truncate(len(data))
        file.write_at(0, data)
    finally:
        file.close()
