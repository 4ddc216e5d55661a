"""Opening the folder of an embedded store: lock, newest snapshot, the log behind it, and the writes of an opening.

The steps are in this order, and each is durable before the next. First, a transaction that is open at the log's end is
aborted (R17), before any other record. A new store gets its feature level. Then the sessions of an earlier process end.
Nobody sees the store before all of that is done.

Everything here blocks. The store runs it in a worker thread.
"""

from pathlib import Path
from typing import Final, NamedTuple

from storage.files import Files, Lock
from storage.metadata import snapshots, transactions
from storage.metadata.batches import pack
from storage.metadata.collector import collector_paused
from storage.metadata.delta import Delta
from storage.metadata.image import Image
from storage.metadata.log import (
    MetadataLog,
)
from storage.metadata.record_codec import encode
from storage.metadata.records import TRANSACTIONS_LEVEL
from storage.metadata.replay import Replay

SESSIONS_AT_ONCE: Final = 256
"""The most sessions of an earlier process that end in one change set, so that it fits a batch."""

_UNFINISHED: Final = "its writer ended before EndTransaction was durable"


class Opened(NamedTuple):
    """The result of opening the folder."""

    lock: Lock
    image: Image
    log: MetadataLog
    snapshot_bytes: int
    """The size of the newest snapshot; 0 if there is none."""

    def close(self) -> None:
        """Release the folder. Everything written is durable."""
        self.log.close()
        self.lock.close()


def metadata_directory(data_dir: Path) -> Path:
    """The metadata store's folder in a broker's data folder."""
    return data_dir / "metadata"


def open_folder(files: Files, directory: Path) -> Opened:
    """Recover the store of this folder, and make it if it is absent. The state is durable, and the log accepts writes.

    Raises:
        AlreadyLocked: it is open elsewhere.
        CorruptMetadata: a file is damaged, or of a later release.
    """
    files.make_dir(directory)
    lock = files.lock(directory / "lock")
    try:
        # A process that died between naming a file and syncing the folder leaves names that are not durable.
        files.sync_dir(directory)
        with collector_paused():
            image, point, snapshot_bytes = snapshots.load_newest(files, directory)
            replay = Replay(image)
            log = MetadataLog.recover(files, directory, point, replay)
            try:
                _begin(replay, log)
                # Sorting a million keys here blocks this thread. At the first read, it would block the event loop.
                image.settle()
            except BaseException:
                log.close()
                raise
    except BaseException:
        lock.close()
        raise
    return Opened(lock, image, log, snapshot_bytes)


def _begin(replay: Replay, log: MetadataLog) -> None:
    if replay.begun is not None:
        log.append(transactions.abort(_UNFINISHED))
        replay.abort()
    image = replay.image
    delta = Delta(image)
    if not image.feature_level:
        delta.set_feature_level(TRANSACTIONS_LEVEL)
    sessions = list(image.sessions)
    for begin in range(0, len(sessions), SESSIONS_AT_ONCE):
        delta.end_sessions(sessions[begin : begin + SESSIONS_AT_ONCE])
    if delta.change_sets:
        log.append(pack([encode(record) for record in change_set] for change_set in delta.change_sets))
        for change_set in delta.change_sets:
            image.apply(change_set)
