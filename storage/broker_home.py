"""A broker's place in a data folder: `<data>/brokers/<broker id>`, with its lock and its journal."""

from pathlib import Path
from typing import Final

import trio

from storage.errors import DataFolderInUse, FenceDamaged
from storage.fence import EpochRecord, read_epochs
from storage.files import AlreadyLocked, Files, Lock

LOCK_RETRY_SECONDS: Final = 0.05


class BrokerHome:
    """The place of one broker, held by its lock.

    The lock gives a good error message, and proves that the process that held it before has ended. It is not the fence,
    because a stopped process keeps its lock.
    """

    def __init__(self, files: Files, data_dir: Path, folder_id: str, broker_id: str, lock: Lock) -> None:
        self.files = files
        self.data_dir = data_dir
        self.folder_id = folder_id
        """Identity of the data folder."""
        self.broker_id = broker_id
        self._lock = lock

    @classmethod
    async def enter(
        cls, files: Files, data_dir: Path, folder_id: str, broker_id: str, *, patience_seconds: float = 0
    ) -> "BrokerHome":
        """Take the place, and make it if it is absent. `broker_id` is a file name.

        Another broker may hold the lock for a moment, to learn whether this one is dead (`dead_or_alive`). So a held
        lock is tried again for `patience_seconds`.

        Raises:
            DataFolderInUse: a broker with this id runs here.
        """
        deadline = trio.current_time() + patience_seconds
        while True:
            try:
                return await files.run(cls._enter, files, data_dir, folder_id, broker_id)
            except DataFolderInUse:
                if trio.current_time() >= deadline:
                    raise
            # The operating system tells nobody that a lock was released.
            await trio.sleep(LOCK_RETRY_SECONDS)

    @classmethod
    def _enter(cls, files: Files, data_dir: Path, folder_id: str, broker_id: str) -> "BrokerHome":
        directory = journal_dir(data_dir, broker_id)
        files.make_dir(directory)
        try:
            lock = files.lock(lock_path(data_dir, broker_id))
        except AlreadyLocked as held:
            raise DataFolderInUse(f"a broker with the id {broker_id} already runs on {data_dir}") from held
        return cls(files, data_dir, folder_id, broker_id, lock)

    @property
    def journal(self) -> Path:
        """The folder of the journal's files."""
        return journal_dir(self.data_dir, self.broker_id)

    @property
    def lock_name(self) -> str:
        """The name of the lock on this machine, until it restarts. Only one process can hold the lock of this name."""
        return self._lock.name

    def close(self) -> None:
        """Release the lock. Idempotent."""
        self._lock.close()


def lock_path(data_dir: Path, broker_id: str) -> Path:
    """The file whose lock a running broker holds."""
    return data_dir / "brokers" / broker_id / "lock"


def journal_dir(data_dir: Path, broker_id: str) -> Path:
    """The folder of a broker's journal files."""
    return data_dir / "brokers" / broker_id / "journal"


def epochs_of(files: Files, data_dir: Path, broker_id: str) -> dict[int, EpochRecord]:
    """The epochs of a broker's journal, in rising order, and what their fences say. Changes nothing. Blocks.

    Raises:
        FenceDamaged: a fence file is damaged, or the journal's folder is not that broker's.
    """
    directory = journal_dir(data_dir, broker_id)
    if not files.exists(directory):
        return {}
    found = read_epochs(files, directory)
    for record in found.values():
        if record.owner.broker != broker_id:
            reason = f"it is the journal of broker {record.owner.broker}; the folder was renamed or copied"
            raise FenceDamaged(directory, reason)
    return found
