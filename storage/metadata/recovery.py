"""Finds what the files of a metadata log add up to: the newest snapshot, and the chain of log files behind it.

Nothing in the folder changes here. A controller may write there meanwhile, so a recovery can be asked to read on. It
then takes what was appended since, as far as that is on the chain.

| what is found                                    | meaning                                                       |
|--------------------------------------------------|---------------------------------------------------------------|
| a file got another name or none since its listing| its controller closed or trimmed it: the folder is read again |
| the chain does not reach the snapshot, and there | the log was trimmed meanwhile: it begins again, at the newer  |
| is a newer one now                               | one                                                           |
| the same, and there is no newer snapshot         | `CorruptMetadata`; behind an image, also `OffChain`           |

Everything here blocks.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Self

from storage.files import Files
from storage.metadata import snapshots
from storage.metadata.batches import HEADER_BYTES, Point, link_at
from storage.metadata.chain import LogName, NoChain, OffChain
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.epochs import MetadataEpochs
from storage.metadata.found_files import find_chain
from storage.metadata.image import Image
from storage.metadata.log import OlderFiles
from storage.metadata.log_files import PartRead, Reader, read_chain, read_file
from storage.metadata.records import DataRecord
from storage.metadata.replay import Replay


def _as_it_is(replay: Replay) -> Reader:
    return replay


class Recovery:
    """What has been read so far."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        epochs: MetadataEpochs,
        replay: Replay,
        point: Point,
        snapshot_bytes: int,
        *,
        reading: Callable[[Replay], Reader],
    ) -> None:
        self._files = files
        self._directory = directory
        self._epochs = epochs
        self._ends: dict[LogName, int] = {}
        self._reader = reading(replay)
        self.replay = replay
        """The state, and a transaction that is open at the end."""
        self.point = point
        """The last batch that was read."""
        self.last: PartRead | None = None
        """The newest file; None if there is none."""
        self.snapshot_bytes = snapshot_bytes
        """The size of the newest snapshot; 0 if there is none."""

    @classmethod
    def of_folder(
        cls,
        files: Files,
        directory: Path,
        epochs: MetadataEpochs,
        *,
        reading: Callable[[Replay], Reader] = _as_it_is,
    ) -> Self:
        """The whole state in the folder. The reader that `reading` returns sees every batch, and passes it on.

        Raises:
            CorruptMetadata: damage. A controller that lives may have been inside a write: a second try that finds the
                same is right.
        """
        while True:
            loaded = snapshots.load_newest(files, directory)
            recovery = cls(
                files, directory, epochs, Replay(loaded.image), loaded.point, loaded.size_bytes, reading=reading
            )
            try:
                recovery.read_on()
            except (CorruptMetadata, OffChain) as failed:
                if snapshots.newest(files, directory) != loaded.name:
                    continue
                if isinstance(failed, CorruptMetadata):
                    raise
                # A snapshot has its name only while the log holds its place.
                raise CorruptMetadata(directory / str(loaded.name), 0, str(failed)) from failed
            else:
                return recovery

    @classmethod
    def behind(
        cls,
        files: Files,
        directory: Path,
        epochs: MetadataEpochs,
        image: Image,
        point: Point,
        kept: list[list[DataRecord]],
    ) -> Self:
        """What the chain has behind `point`, the place of an image that readers see. It goes to `kept`.

        Raises:
            CorruptMetadata: as `of_folder`, or the log was trimmed behind that place.
            OffChain: that place is not in the log.
        """
        newest = snapshots.newest(files, directory)
        size = 0 if newest is None else _size(files, directory / str(newest))
        recovery = cls(files, directory, epochs, Replay(image, kept=kept), point, size, reading=_as_it_is)
        recovery.read_on()
        return recovery

    def read_on(self) -> None:
        """Read what the chain has behind the last batch that was read.

        Raises:
            CorruptMetadata: a file is missing or damaged. Nothing more can be read then.
            OffChain: that batch is not on the chain. It was never confirmed, or the folder is another one.
        """
        while True:
            try:
                chain = find_chain(self._files, self._directory, self._epochs, self.point, self.replay.epoch)
            except NoChain as broken:
                raise damage_of(self._files, self._directory, broken) from broken
            try:
                for part in read_chain(self._files, self._directory, chain, self.point, self._reader):
                    self.last = part
                    self.point = part.read.point
                    self._ends[part.name] = part.read.end
            except FileNotFoundError:
                continue
            return

    @property
    def older(self) -> OlderFiles:
        """The files that were read."""
        return OlderFiles(len(self._ends), sum(self._ends.values()))


def damage_of(files: Files, directory: Path, broken: NoChain) -> CorruptMetadata:
    """The damage that breaks the chain, at its place in the file."""
    path = directory / broken.name
    try:
        file = files.open(path)
    except FileNotFoundError:
        return CorruptMetadata(path, 0, broken.reason)
    try:
        link = link_at(file.read_at(0, HEADER_BYTES))
        if link is None:
            return CorruptMetadata(path, 0, broken.reason)
        read = read_file(file, link.before, _Nobody())
    except CorruptMetadata as damage:
        return damage
    finally:
        file.close()
    return CorruptMetadata(path, read.end, broken.reason if read.torn is None else read.torn.reason)


class _Nobody:
    """A reader that looks for damage alone."""

    trusts_length = False

    def batch(self, body: bytes) -> None: ...

    def end_file(self) -> None: ...


def _size(files: Files, path: Path) -> int:
    file = files.open(path)
    try:
        return file.size()
    finally:
        file.close()
