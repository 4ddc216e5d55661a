"""The root of the daemon's errors, and the errors of ledgers.

Every room derives its errors from `ExpectedError`. So background work catches one class, and the class says what to do
next. Each front end has one table from the classes to its protocol's codes (`broker/pulsar/faults.py`).
"""

from pathlib import Path
from typing import Final, TypeVar

from storage.position import Position
from storage.writer import Writer

SPACE_RETRY_SECONDS: Final = 1.0
"""How long after `NoSpace`, `DiskFull` or `StoreFull` the same step is tried again, because no event says that space
was freed. A refused step is cheap: a reservation that does not fit writes nothing."""


class ExpectedError(Exception):
    """Root of every error that a room promises to raise. The message is for people.

    Policy reads `retriable` and `definite`, never the cause of the error. An error that is raised because of another
    one carries both itself.
    """

    retriable: bool = False
    """Whether the same call may succeed later, here or at the next owner, without a repair."""
    definite: bool = True
    """Whether a refused write is known to be missing. If False, it may have been made."""


_Error = TypeVar("_Error", bound=BaseException)


def fresh(error: _Error) -> _Error:
    """A copy to raise in place of an error that an object keeps, with the same cause and without a traceback.

    A raised error has a traceback, and the traceback's frames hold the object that keeps the error. Raising the kept
    error would make a reference cycle, and each caller would add frames to it.
    """
    # It has all arguments, such as the file name of an OSError. No constructor runs, as it may take other arguments.
    reduced = error.__reduce__()
    assert isinstance(reduced, tuple), "an exception reduces to its class and arguments"
    made = type(error).__new__(type(error), *reduced[1])
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made


class StorageError(ExpectedError):
    """Base of the errors of ledgers and managed ledgers."""


class LedgerSealed(StorageError):
    """The ledger accepts no more entries. Its entries stay readable."""


class LedgerFailed(StorageError):
    """The writer has ended. It confirms nothing more, though unconfirmed entries may be on the disk."""

    definite = False


class NoSpace(StorageError):
    """The disk is full, so nothing was accepted. The same call succeeds once space is freed."""

    retriable = True


class Fenced(LedgerFailed):
    """Another owner or process has taken over. Later writes of this one are neither confirmed nor ever read."""

    retriable = True


class LedgerNotMade(StorageError):
    """The disk refused the file of a new ledger. Nothing was appended, and nothing else is affected."""

    retriable = True


class LedgerNotFound(StorageError):
    """The ledger does not exist, or was removed."""


class CursorCorrupt(StorageError):
    """A cursor's record cannot be read. The subscription's progress is unknown, so its topic is not served."""


class LedgerListCorrupt(StorageError):
    """The record of a managed ledger cannot be read. Nobody knows its ledgers, so its topic is not served."""


class LedgerCorrupt(StorageError):
    """Confirmed data is damaged or missing. Entries before the damage stay readable. Nothing is cut silently."""

    def __init__(self, path: Path, offset: int, reason: str, *, next_entry: int | None = None) -> None:
        super().__init__(f"{path} is damaged at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason
        self.next_entry = next_entry
        """The first entry of the ledger behind the damage that may be readable. None: not determined."""


class LedgerAbsent(LedgerCorrupt):
    """The whole file of a ledger with confirmed entries is missing."""


class ProducersUnreadable(LedgerCorrupt):
    """A log with markers does not say which of its transactions were aborted or open, because of damage."""

    def __init__(self, log: str, reason: str) -> None:
        StorageError.__init__(
            self,
            f"It is unknown which transactions of {log} were aborted or open: {reason}. Restore its files from a copy.",
        )
        self.path, self.offset, self.reason, self.next_entry = Path(log), 0, reason, None


class EntriesUnreadable(LedgerCorrupt):
    """A range of entries cannot be read. Entries behind it can be read, unless there is further damage."""

    def __init__(self, damage: LedgerCorrupt, first: Position, last: Position) -> None:
        super().__init__(
            damage.path,
            damage.offset,
            f"{damage.reason}. The entries from {first.ledger}:{first.entry} to {last.ledger}:{last.entry} cannot be "
            f"read. Restore the file from a copy, or seek behind {last.ledger}:{last.entry} to continue without them.",
        )
        self.first = first
        self.last = last


class JournalDamaged(StorageError):
    """The journal is damaged, and the damage does not show which ledgers lost entries. The store does not start."""

    path: Path


class JournalFileDamaged(JournalDamaged):
    """A file of the journal is damaged or missing, or belongs elsewhere."""

    def __init__(self, path: Path, offset: int, reason: str) -> None:
        super().__init__(
            f"{path} is damaged at byte {offset}: {reason}. Confirmed entries may be lost, and nothing shows "
            "which ones. Restore the file from a copy. To accept the loss of everything that only this file holds, "
            "replace it with a file that contains the word lost."
        )
        self.path = path
        self.offset = offset


class FenceDamaged(JournalDamaged):
    """The fence is damaged, so the list of journal files, or their owner, is unknown."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} cannot be used: {reason}. Without it, the confirmed entries in the journal are unknown. "
            "Restore it, or the whole folder, from a copy."
        )
        self.path = path


class LedgerOutOfReach(StorageError):
    """A ledger is in another data folder. For this broker it is neither empty nor lost."""

    retriable = True

    def __init__(self, writer: Writer, folder: str, data_dir: Path) -> None:
        super().__init__(
            f"its messages are in the data folder with the identity {writer.folder}, where broker {writer.broker} "
            f"wrote them. This broker's data folder {data_dir} has the identity {folder}. Start broker "
            f"{writer.broker} in its own folder"
        )


class WriterAlive(StorageError):
    """A ledger is open in another broker that may be running. It closes the ledger, or turns out to have ended."""

    retriable = True

    def __init__(self, writer: Writer, *, gone_at: float | None = None) -> None:
        """`gone_at` is when the broker counts as ended if nothing is heard of it until then, on Trio's clock."""
        super().__init__(
            f"broker {writer.broker} has the ledger open and is not known to have ended. Try again in a few seconds"
        )
        self.gone_at = gone_at


class JournalMissing(StorageError):
    """The journal with an open ledger's entries is missing, or only an older state of it exists."""

    def __init__(self, writer: Writer, directory: Path) -> None:
        super().__init__(
            f"{directory} does not have epoch {writer.epoch} of broker {writer.broker}'s journal, which may hold "
            "confirmed entries. Restore that folder"
        )


class RecoveryElsewhere(StorageError):
    """Another broker is recovering a dead broker's journal. Its ledgers can be opened once that is done."""

    retriable = True

    def __init__(self, broker: str, by: str | None) -> None:
        """`by` is None if the other one ended its recovery before it could be named."""
        who = "Another broker" if by is None else f"Broker {by}"
        super().__init__(f"{who} is recovering the journal of broker {broker}. Try again in a moment.")


class JournalContended(StorageError):
    """Another process took over the same broker's journal at the same moment and was first, or that broker returned."""

    retriable = True

    def __init__(self, broker: str) -> None:
        super().__init__(f"Another process took over the journal of broker {broker} at this moment. Try again.")


class IdentityMismatch(StorageError):
    """Data folder, journal and metadata root do not belong together. The message is for people."""


class DataFolderInUse(StorageError):
    """Another broker with the same id runs on this data folder."""
