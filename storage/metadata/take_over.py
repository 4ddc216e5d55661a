"""Takes over the metadata log: how every epoch begins, at the start of a single broker as at a fail-over.

| step                                                       | if this process dies or stops behind it                 |
|------------------------------------------------------------|---------------------------------------------------------|
| T0 read the log                                            | nothing was written                                     |
| T1 the lock of the new epoch, if it is free                | others do without it                                    |
| T2 prepare the new file, under an unfinished name          | a later controller removes it; a full disk ends here,   |
|                                                            | and no epoch has changed (C24)                          |
| T3 take the epoch: make its fence                          | its predecessor confirms nothing more; the next epoch   |
|                                                            | is one higher                                           |
| T4 read what the log has since                             | nothing was written                                     |
| T5 write the batches again that no later one confirms,     | identical bytes, which harm nobody at any time          |
|    in place, and sync                                      |                                                         |
| T6 the first batch: an abort of an open transaction, the   | without the name it is not in the log; with it, the     |
|    feature level of an older store, `TakeOver`. Sync, give | next controller goes on behind it or before it. Nothing |
|    the file its name, check the fence, note in the fence   | rests on it until it was checked                        |
|    which file begins the epoch                             |                                                         |
| T7 leave the notice to releases before epochs              | a later controller does it                              |
| T8 remove what earlier controllers left                    | a later controller does it                              |

The batches are written again (T5) because after a failed sync they may be only in memory, and marked as written.
Another sync would then do nothing for them. They are not copied to the new file, because a batch depends on its place
in the file (`batches`). A torn rest behind them stays as it is: it is behind the place where the new file goes on, and
its writer may still be inside that write. A controller writes no batch twice, so a whole batch never changes.

The log of a single broker of an earlier release has no epochs. Its newest file is closed before T6. So that release
refuses the folder, instead of going on where the first epoch did (C22). The notice tells that release why, also once
its own files are gone (`older_releases`).

Everything here blocks.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from storage.epoch_files import EpochTaken
from storage.files import File, Files, Lock
from storage.metadata import snapshots
from storage.metadata.batches import Body, Point, encode_batches
from storage.metadata.chain import LogName, OffChain
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.epochs import Deposed, MetadataEpoch, MetadataEpochs
from storage.metadata.image import Image
from storage.metadata.log import Appended, MetadataLog, close_file, prepare_file, remove_covered
from storage.metadata.older_releases import leave_notice
from storage.metadata.record_codec import encode
from storage.metadata.records import EPOCHS_LEVEL, AbortTransaction, DataRecord, FeatureLevel, LogRecord, TakeOver
from storage.metadata.recovery import Recovery

_UNFINISHED_NAME: Final = re.compile(r"(?:\d{20}(?:-(\d{10}))?|(\d{10})-[0-9a-f]{16})\.(?:log|snapshot)-unfinished")

_UNFINISHED_END: Final = "its writer ended before EndTransaction was durable"


class Started(NamedTuple):
    """An epoch that has begun. This process is its controller until a check fails."""

    epoch: MetadataEpoch
    log: MetadataLog
    first: Appended
    """The first batch of the epoch."""
    image: Image
    """The state: the given image, or a new one if the log no longer reaches the given place."""
    snapshot_bytes: int
    """The size of the newest snapshot; 0 if there is none."""
    pending: list[list[DataRecord]]
    """The change sets that the given image lacks, in order, for the caller to show. Empty for a new image."""

    def close(self) -> None:
        """Release the log's file and the controller's lock."""
        self.log.close()
        self.epoch.close()


def take_over(
    files: Files,
    directory: Path,
    epochs: MetadataEpochs,
    *,
    broker: str,
    address: str | None,
    image: Image | None = None,
    point: Point | None = None,
    is_alone: bool = False,
    after: int | None = None,
) -> Started:
    """Take the next epoch, and begin its log. Durable on return.

    `image` is what a standby has, and `point` its place. The image stays as it is, because readers see it. `is_alone`
    says that no other process has the folder open. Then what earlier ones left unfinished goes before T2, so that it
    does not take the space of the new file. `after` is the newest epoch of which the caller knows that its controller
    is gone; None if it need not be. If another process takes an epoch behind it first, this one does not depose it.

    Raises:
        EpochTaken: another process took an epoch at the same time.
        Deposed: another process took a later epoch meanwhile.
        DiskFull: no epoch was taken.
        CorruptMetadata: a file is damaged or missing, or of a later release. If the controller before may live, it may
            have been inside a write. A second try 0.1 s later that raises the same error is right.
        OffChain: the image has what is not in the log.
    """
    # A process that died between naming a file and syncing the folder leaves names that are not durable.
    files.sync_dir(directory)
    kept: list[list[DataRecord]] = []
    recovery = _recover(files, directory, epochs, image, point, kept)
    if is_alone:
        _remove_unfinished(files, directory)
    epoch, prepared = _take_epoch(files, directory, epochs, broker, address, after)
    with ExitStack() as undone:
        undone.callback(epoch.close)
        undone.enter_context(_found_missing(epoch))
        with closing(prepared):
            recovery = _read_on(files, directory, epochs, epoch, recovery, is_new=recovery.replay.image is not image)
            epoch.check()
            _settle(files, directory, recovery)
            first = _begin(files, directory, epoch, prepared, recovery)
        file = files.open(_path(directory, epoch, first))
        undone.callback(file.close)
        leave_notice(files, directory, epoch.epoch)
        _remove_leftovers(files, directory, epochs, epoch)
        undone.pop_all()
    log = MetadataLog(files, directory, epoch, file, first, recovery.older)
    found = recovery.replay.image
    return Started(epoch, log, first, found, recovery.snapshot_bytes, kept if found is image else [])


@contextmanager
def _found_missing(epoch: MetadataEpoch) -> Iterator[None]:
    """A file that is missing was removed by a later controller, whose snapshot covers it. Then that is `Deposed`."""
    try:
        yield
    except FileNotFoundError:
        epoch.check()
        raise


def _recover(
    files: Files,
    directory: Path,
    epochs: MetadataEpochs,
    image: Image | None,
    point: Point | None,
    kept: list[list[DataRecord]],
) -> Recovery:
    if image is None or point is None:
        return Recovery.of_folder(files, directory, epochs)
    try:
        return Recovery.behind(files, directory, epochs, image, point, kept)
    except (CorruptMetadata, OffChain):
        # If the log was trimmed behind this place, the newest snapshot is beyond it.
        newest = snapshots.newest(files, directory)
        if newest is None or newest.sequence <= point.sequence:
            raise
        return Recovery.of_folder(files, directory, epochs)


def _take_epoch(
    files: Files, directory: Path, epochs: MetadataEpochs, broker: str, address: str | None, after: int | None
) -> tuple[MetadataEpoch, File]:
    """T1 to T3."""
    found = epochs.newest()
    number = 1 if found is None else found.epoch + 1
    if after is not None and number != after + 1:
        raise EpochTaken(directory / f"fence-{number - 1:010}")
    lock: Lock | None = epochs.controller_lock(number)
    try:
        # The number of its first batch is not known yet. Others may prepare one for the same epoch.
        prepared = prepare_file(files, directory, f"{number:010}-{epochs.random_bits(64):016x}")
        try:
            if epochs.newest() != found:
                raise EpochTaken(directory / f"fence-{number:010}")
            return epochs.claim(number, broker, address, lock), prepared
        except BaseException:
            prepared.close()
            with suppress(FileNotFoundError):
                files.remove(prepared.path)
            raise
    except BaseException:
        if lock is not None:
            lock.close()
        raise


def _read_on(
    files: Files, directory: Path, epochs: MetadataEpochs, epoch: MetadataEpoch, recovery: Recovery, *, is_new: bool
) -> Recovery:
    """T4."""
    try:
        recovery.read_on()
    except (CorruptMetadata, OffChain) as failed:
        epoch.check()
        newest = snapshots.newest(files, directory)
        is_trimmed = newest is not None and newest.sequence > recovery.point.sequence
        # The unproven end of the log, which T0 read, was not confirmed when another process took over meanwhile. Or the
        # log was trimmed behind it.
        if not is_trimmed and not (is_new and isinstance(failed, OffChain)):
            raise
        return Recovery.of_folder(files, directory, epochs)
    return recovery


def _begin(files: Files, directory: Path, epoch: MetadataEpoch, prepared: File, recovery: Recovery) -> Appended:
    """T6."""
    first = _first_batch(recovery, epoch)
    prepared.write_at(0, first.data)
    prepared.sync()
    try:
        files.rename(prepared.path, _path(directory, epoch, first))
    except FileNotFoundError as removed:
        raise Deposed(epoch.epoch) from removed
    files.sync_dir(directory)
    epoch.check()
    epoch.note_begun(first.last.sequence)
    return first


def _path(directory: Path, epoch: MetadataEpoch, first: Appended) -> Path:
    return directory / str(LogName(first.last.sequence, epoch.epoch))


def _settle(files: Files, directory: Path, recovery: Recovery) -> None:
    """T5. The new file goes on behind what is read, so it must be durable."""
    if recovery.last is None:
        return
    name, read = recovery.last
    path = directory / str(name)
    if read.unproven < read.end:
        file = files.open(path)
        try:
            file.write_at(read.unproven, file.read_at(read.unproven, read.end - read.unproven))
            file.sync()
        finally:
            file.close()
    if not name.epoch and not name.is_closed:
        # Another process may have closed it at the same time. The next check says so.
        with suppress(FileNotFoundError):
            close_file(files, path)


def _first_batch(recovery: Recovery, epoch: MetadataEpoch) -> Appended:
    replay = recovery.replay
    records: list[LogRecord] = []
    if replay.begun is not None:
        records.append(AbortTransaction(_UNFINISHED_END))
    if replay.level < EPOCHS_LEVEL:
        records.append(FeatureLevel(replay.revision, EPOCHS_LEVEL))
    found = epoch.found
    records.append(TakeOver(replay.revision, found.epoch, found.broker, found.address))
    body = Body(b"".join(map(encode, records)), len(records))
    after = recovery.point
    data, last = encode_batches(after, [body], confirmed=after.sequence, offset=0)
    replay.batch(body.data)
    return Appended(data, 0, after, last)


def _remove_unfinished(files: Files, directory: Path, epoch: int | None = None) -> None:
    """Remove the unfinished log files and snapshots of other controllers: all, or those up to this epoch."""
    for name in files.names(directory):
        found = _UNFINISHED_NAME.fullmatch(name)
        if found is not None and (epoch is None or int(found[1] or found[2] or 0) <= epoch):
            with suppress(FileNotFoundError):
                files.remove(directory / name)


def _remove_leftovers(files: Files, directory: Path, epochs: MetadataEpochs, epoch: MetadataEpoch) -> None:
    """T8. What a controller that is stopped would still need is of no use: it is deposed."""
    newest = snapshots.newest(files, directory)
    if newest is not None:
        # It has its name, so the log behind it is all that is needed.
        snapshots.remove_older(files, directory, newest.sequence)
        remove_covered(files, directory, newest.sequence)
    _remove_unfinished(files, directory, epoch.epoch)
    epochs.remove_older(epoch)
