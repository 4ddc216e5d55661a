"""The metadata store's record of every broker's journal: its data folder and its newest epoch.

    /journals/<broker id>      {folder, path, lock, epoch, stream, pending {epoch, stream, by}?}
    /recovering/<broker id>    {by}, ephemeral: that broker recovers this journal now

A broker that takes over its own journal first claims its fence. It then writes this record by compare-and-set, before
it changes anything else. A broker that recovers the journal of another one reserves the pending epoch first, and writes
the record again at the end (`journal_recovery`). The fence names the epoch that the record had (`Owner.previous`). So a
journal and its record belong together in the cases of this table. In any other case one of the two is in another state
(E1):

    newest fence                  record          | meaning
    none                          none            | a new broker
    names no previous epoch       none            | its start was interrupted before the record was written
    is the record's epoch         an epoch        | the writer that the record knows was the last one
    names the record's epoch      an epoch        | a take-over was interrupted before the record was written
    has not begun, and the fence  an epoch        | a take-over lost: another process wrote the record first. The
      of the record's epoch is there              |   fence below it counts
    anything else                                 | a copy, an older state, or a missing folder: refused
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import orjson
import trio

from storage.errors import IdentityMismatch, JournalContended, RecoveryElsewhere
from storage.fence import EpochRecord
from storage.metadata.store import ABSENT, Check, Conflict, MetadataStore, Op, Put, Record, Session, StoreUnavailable
from storage.unknown_fields import NOTHING_UNKNOWN, Unknown, restored, unknown_in
from storage.writer import Epoch, Writer

JOURNALS: Final = "/journals/"
RECOVERING: Final = "/recovering/"
_FIELDS: Final = frozenset({"folder", "path", "lock", "epoch", "stream", "pending"})
FAREWELL_SECONDS_MAX: Final = 1.0
"""How long the end of an announcement may take if its recovery is cancelled."""
REMOVE_AGAIN_SECONDS: Final = 1.0
"""The pause after the store did not answer to the end of an announcement."""


class Pending(NamedTuple):
    """An epoch that a recoverer has reserved. Its fence may exist."""

    epoch: int
    stream: int
    by: str
    """The broker that reserved it."""

    @property
    def life(self) -> Epoch:
        """The epoch, as `Recorded.life`."""
        return Epoch(self.epoch, self.stream)


class Recorded(NamedTuple):
    """The record of one broker's journal."""

    folder: str
    """Identity of its data folder."""
    path: str
    """Where that folder was when the journal was last taken over. For people."""
    life: Epoch
    version: int
    lock: str | None = None
    """The name of the lock that the broker itself held when it last took over its journal."""
    pending: Pending | None = None
    unknown: Unknown = NOTHING_UNKNOWN

    @property
    def highest(self) -> int:
        """The highest epoch that anybody has taken or reserved, as far as the record knows."""
        return self.life.number if self.pending is None else max(self.life.number, self.pending.epoch)


def recorded_in(record: Record) -> Recorded:
    """What the record of a journal says."""
    fields = orjson.loads(record.value)
    pending = fields.get("pending")
    return Recorded(
        fields["folder"],
        fields["path"],
        Epoch(fields["epoch"], fields["stream"]),
        record.version,
        fields.get("lock"),
        None if pending is None else Pending(pending["epoch"], pending["stream"], pending["by"]),
        unknown_in(fields, _FIELDS),
    )


class JournalRecords:
    """The records of all brokers' journals."""

    def __init__(self, metadata: MetadataStore, data_dir: Path) -> None:
        self._metadata = metadata
        self._path = str(data_dir.absolute())

    async def read(self, broker_id: str) -> Recorded | None:
        """The current record; None if that broker never started."""
        record = await self._metadata.get(JOURNALS + broker_id)
        return None if record is None else recorded_in(record)

    async def advance(self, known: Recorded | None, writer: Writer, lock: str | None) -> Check:
        """Record the epoch of `writer`, which has claimed the fence. Durable on return.

        Returns a condition that holds until another process takes over the journal.

        Raises:
            JournalContended: the record has changed since `known` was read.
        """
        expected = ABSENT if known is None else known.version
        unknown = NOTHING_UNKNOWN if known is None else known.unknown
        recorded = Recorded(writer.folder, self._path, writer.life, expected, lock, unknown=unknown)
        return self.unchanged(writer.broker, await self._put(writer.broker, recorded, None))

    async def reserve(self, broker_id: str, known: Recorded, pending: Pending, absent: Check | None) -> Recorded:
        """Reserve an epoch for the recovery of this broker's journal. Durable on return.

        `absent` is a condition that holds while the broker is not registered.

        Raises:
            JournalContended: the record has changed since `known` was read, or the broker has registered.
        """
        return await self._put(broker_id, known._replace(pending=pending), absent)

    @staticmethod
    def unchanged(broker_id: str, known: Recorded) -> Check:
        """A condition that holds until another process takes over the journal, or reserves an epoch for that."""
        return Check(JOURNALS + broker_id, known.version)

    @asynccontextmanager
    async def announced(self, broker_id: str, by: str, session: Session | None) -> AsyncIterator[None]:
        """Tell others that `by` recovers the journal of `broker_id`, for the length of the context.

        This only saves work. If `by` has announced it already, nothing changes. None as the session: nobody is told.

        Raises:
            RecoveryElsewhere: another broker recovers it.
        """
        if session is None:
            yield
            return
        key = RECOVERING + broker_id
        try:
            version = await self._metadata.put(key, orjson.dumps({"by": by}), expected=ABSENT, session=session)
        except Conflict as conflict:
            held = await self._metadata.get(key)
            other = None if held is None else orjson.loads(held.value)["by"]
            if other != by:
                raise RecoveryElsewhere(broker_id, other) from conflict
            yield
            return
        try:
            yield
        finally:
            await self._withdraw(key, version)

    async def _withdraw(self, key: str, version: int) -> None:
        """Remove an announcement, as soon as the store answers. Others wait for that as long as the session lasts."""
        try:
            await self._remove(key, version)
        except trio.Cancelled:
            with trio.move_on_after(FAREWELL_SECONDS_MAX, shield=True):
                await self._remove(key, version)
            raise

    async def _remove(self, key: str, version: int) -> None:
        while True:
            try:
                await self._metadata.delete(key, expected=version)
            except Conflict:
                # It has ended with its session, or an earlier attempt has removed it.
                return
            except StoreUnavailable:
                await trio.sleep(REMOVE_AGAIN_SECONDS)
            else:
                return

    async def wait_unannounced(self, broker_id: str) -> None:
        """Wait until no broker recovers the journal of `broker_id`. The end of the recoverer's session counts, too."""
        async with self._metadata.watch_key(RECOVERING + broker_id) as watch:
            while await watch.next() is not None:
                pass

    async def _put(self, broker_id: str, recorded: Recorded, condition: Check | None) -> Recorded:
        """Write this record in place of the version that it has. Returns it with its new version."""
        fields: dict[str, object] = {
            "folder": recorded.folder,
            "path": recorded.path,
            "lock": recorded.lock,
            "epoch": recorded.life.number,
            "stream": recorded.life.stream,
            **restored(recorded.unknown),
        }
        if recorded.pending is not None:
            fields["pending"] = recorded.pending._asdict()
        ops: list[Op] = [Put(JOURNALS + broker_id, orjson.dumps(fields), recorded.version)]
        if condition is not None:
            ops.append(condition)
        try:
            return recorded._replace(version=(await self._metadata.commit(ops)).revision)
        except Conflict as conflict:
            raise JournalContended(broker_id) from conflict


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
