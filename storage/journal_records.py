"""The metadata store's record of every broker's journal: its data folder and its newest epoch.

    /journals/<broker id>    {folder, path, epoch, stream}

A process that takes over a journal first claims its fence. It then writes this record by compare-and-set, before it
changes anything else. The fence names the epoch that the record had (`Owner.previous`). So a journal and its record
belong together in the cases of this table. In any other case one of the two is in another state (E1):

    newest fence                  record          | meaning
    none                          none            | a new broker
    names no previous epoch       none            | its start was interrupted before the record was written
    is the record's epoch         an epoch        | the writer that the record knows was the last one
    names the record's epoch      an epoch        | a take-over was interrupted before the record was written
    has not begun, and the fence  an epoch        | a take-over lost: another process wrote the record first. The
      of the record's epoch is there              |   fence below it counts
    anything else                                 | a copy, an older state, or a missing folder: refused
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from storage.errors import IdentityMismatch, JournalContended
from storage.fence import EpochRecord
from storage.metadata.store import ABSENT, Check, Conflict, MetadataStore
from storage.unknown_fields import NOTHING_UNKNOWN, Unknown, restored, unknown_in
from storage.writer import Epoch, Writer

JOURNALS: Final = "/journals/"

_FIELDS: Final = frozenset({"folder", "path", "epoch", "stream"})


class Recorded(NamedTuple):
    """The record of one broker's journal."""

    folder: str
    """Identity of its data folder."""
    path: str
    """Where that folder was when the journal was last taken over. For people."""
    life: Epoch
    version: int
    unknown: Unknown = NOTHING_UNKNOWN


class JournalRecords:
    """The records of all brokers' journals."""

    def __init__(self, metadata: MetadataStore, data_dir: Path) -> None:
        self._metadata = metadata
        self._path = str(data_dir.absolute())

    async def read(self, broker_id: str) -> Recorded | None:
        """The current record; None if that broker never started."""
        record = await self._metadata.get(JOURNALS + broker_id)
        if record is None:
            return None
        fields = orjson.loads(record.value)
        life = Epoch(fields["epoch"], fields["stream"])
        return Recorded(fields["folder"], fields["path"], life, record.version, unknown_in(fields, _FIELDS))

    async def advance(self, known: Recorded | None, writer: Writer) -> Check:
        """Record the epoch of `writer`, which has claimed the fence. Durable on return.

        Returns a condition that holds until another process takes over the journal.

        Raises:
            JournalContended: the record has changed since `known` was read.
        """
        fields = {
            "folder": writer.folder,
            "path": self._path,
            "epoch": writer.epoch,
            "stream": writer.stream,
            **restored(NOTHING_UNKNOWN if known is None else known.unknown),
        }
        expected = ABSENT if known is None else known.version
        key = JOURNALS + writer.broker
        try:
            return Check(key, await self._metadata.put(key, orjson.dumps(fields), expected=expected))
        except Conflict as conflict:
            raise JournalContended(writer.broker) from conflict


def require_fit(
    broker_id: str, data_dir: Path, folder: str, recorded: Recorded | None, epochs: Mapping[int, EpochRecord]
) -> None:
    """Return if these epochs belong to the newest state of the journal in the record (see the table above).

    Raises:
        IdentityMismatch: they do not.
    """
    journal = f"The journal of broker {broker_id} in {data_dir}"
    if recorded is not None and recorded.folder != folder:
        raise IdentityMismatch(
            f"Broker {broker_id} keeps its data in the folder with the identity {recorded.folder}, last used as "
            f"{recorded.path}, and not in {data_dir}, whose identity is {folder}. Start it with its own --data-dir, or "
            "give this one another --broker-id."
        )
    life = None if recorded is None else recorded.life
    newest = _newest(epochs, life)
    if newest is None:
        if recorded is not None:
            raise IdentityMismatch(
                f"{journal} is missing, though it has reached epoch {recorded.life.number} and may hold confirmed "
                "messages. Restore the folder from a copy."
            )
        return
    epoch, record = newest
    owner = record.owner
    if (owner.folder, owner.broker) != (folder, broker_id):
        raise IdentityMismatch(
            f"{journal} was written by broker {owner.broker} in the folder with the identity {owner.folder}, and this "
            f"folder has the identity {folder}. Put the journal back where it was."
        )
    if life in (owner.previous, Epoch(epoch, owner.stream)):
        return
    if recorded is None or epoch > recorded.life.number:
        known = "knows nothing of it" if recorded is None else f"knows epoch {recorded.life.number}"
        raise IdentityMismatch(
            f"{journal} has reached epoch {epoch}, but the metadata {known}: the metadata is an older copy. Restore "
            "the newest metadata."
        )
    raise IdentityMismatch(
        f"{journal} is at epoch {epoch}, but another copy of it reached epoch {recorded.life.number}, last in "
        f"{recorded.path}: this folder is an older copy. Start the newest one."
    )


def _newest(epochs: Mapping[int, EpochRecord], life: Epoch | None) -> tuple[int, EpochRecord] | None:
    """The newest epoch, without take-overs that lost against `life`. Those wrote nothing."""
    lives = {Epoch(epoch, record.owner.stream) for epoch, record in epochs.items()}
    for epoch, record in sorted(epochs.items(), reverse=True):
        has_lost = life in lives and not record.has_begun and epoch > life.number
        if not has_lost:
            return epoch, record
    return None
