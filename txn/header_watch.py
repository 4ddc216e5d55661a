"""How participants learn that a transaction has ended: through one watch on all headers in each broker.

The coordinator calls nobody (PIP-473). It changes the header, the store's watch fires, and this module tells every
segment and subscription with unresolved op records of that transaction. A participant joins before it writes its op
record, and that write requires the open header. So the decision always comes after the joining and cannot be missed
(T27).

The sweeps also learn of each header here, whichever broker wrote it. That broker may be gone when the header is due,
and nobody else would end or forget the transaction.
"""

from typing import Final, Protocol

import trio

from storage.entry import TxnId
from storage.metadata.store import Check, Conflict, MetadataStore, Record, starting_with
from txn.headers import KEY_PREFIX, Header, header_key, txn_of_key
from txn.open_header import fresh_headers, state_of
from txn.states import TxnState
from txn.unreadable import Unreadable

TOLD_AT_ONCE: Final = 4
"""Participants told without a pause. Each wakes its dispatchers. With pauses in between, the client that decided the
transaction gets its answer before most of them work. So a commit takes as long for 64 segments as for one."""


WITHOUT_HEADER: Final = TxnState.ABORTED
"""The state of a transaction that has op records but no header.

A header outlives its op records, so something outside the broker removed it. Only a header proves a commit. So the
entries of such a transaction stay hidden, and its acknowledged messages are sent again. The rule is the same for both.
Otherwise a job that acknowledges its input and writes its output in one transaction would do half of it."""


class Participant(Protocol):
    """A segment's transaction buffer, or a subscription's pending acknowledgements."""

    def decided(self, txn: TxnId, state: TxnState) -> None:
        """Note that `txn` has ended. Called at least once for each decision. Must not block, and must be idempotent."""


class RecordFollower(Protocol):
    """What sees every change of a range of records: a sweep's `DueRecords`."""

    def shown(self, record: Record) -> None:
        """Note that a record was written. Raises RecordUnreadable."""

    def removed(self, key: str) -> None:
        """Note that a record was removed."""


class HeaderWatch:
    """Follows every header and tells the participants of a transaction when it ends."""

    def __init__(self, metadata: MetadataStore) -> None:
        """Set up. `run` does the work."""
        self._metadata = metadata
        self._followers: list[RecordFollower] = []
        self._participants: dict[TxnId, set[Participant]] = {}
        self._unreadable = Unreadable()
        self._told = 0
        """Participants told since the last pause."""

    def attach(self, follower: RecordFollower) -> None:
        """Tell `follower` of every header that is written or removed while this runs."""
        self._followers.append(follower)

    @property
    def transactions_joined(self) -> int:
        """How many transactions have participants in this broker."""
        return len(self._participants)

    def join(self, txn: TxnId, participant: Participant) -> None:
        """Tell `participant` when `txn` ends, until `leave`."""
        self._participants.setdefault(txn, set()).add(participant)

    def leave(self, txn: TxnId, participant: Participant) -> None:
        """Undo `join`. No effect if there was none."""
        joined = self._participants.get(txn)
        if joined is not None:
            joined.discard(participant)
            if not joined:
                del self._participants[txn]

    async def catch_up(self, txns: list[TxnId], *claims: Check) -> None:
        """Return once every decision on `txns` made before this call was told to the participants.

        The `claims` held at a moment after the call.

        It reads the headers instead of waiting for the watch, so its cost follows the number of open transactions
        (docs/design.md#read-your-commit).

        Raises:
            Conflict: one of the claims does not hold. Nothing was told.
            StoreUnavailable: the store does not answer.
        """
        found = await fresh_headers(self._metadata, txns, *(claim.key for claim in claims))
        for claim in claims:
            if found.version(claim.key) != claim.expected:
                raise Conflict(claim.key, claim.expected, found.version(claim.key))
        for txn in txns:
            record = found.records[header_key(txn)]
            if record is None:
                await self._tell(txn, WITHOUT_HEADER)
                continue
            # A damaged header leaves its transaction undecided here. The others go on.
            with self._unreadable.reading(record.key):
                # A group's decision counts even if its headers do not show it yet.
                await self._tell(txn, state_of(found.records.get, txn, Header.from_value(record.value)))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the headers until cancelled. Started once the watch is open."""
        async with self._metadata.watch_range(*starting_with(KEY_PREFIX)) as watch:
            await watch.next()
            task_status.started()
            async for change in watch:
                for key in change.deleted:
                    for follower in self._followers:
                        follower.removed(key)
                    with self._unreadable.reading(key):
                        # Participants that know the outcome already ignore this.
                        await self._tell(txn_of_key(key), WITHOUT_HEADER)
                for record in change.records:
                    # A damaged header leaves its transaction undecided here. The others go on.
                    with self._unreadable.reading(record.key):
                        for follower in self._followers:
                            follower.shown(record)
                        txn = txn_of_key(record.key)
                        if txn in self._participants:
                            # The state at this change. The group's record may already be about a later batch.
                            await self._tell(txn, Header.from_value(record.value).state)

    async def _tell(self, txn: TxnId, state: TxnState) -> None:
        if state.is_final:
            # A copy, because a participant may leave while it is told.
            for participant in tuple(self._participants.get(txn, ())):
                self._told += 1
                if self._told == TOLD_AT_ONCE:
                    await trio.lowlevel.checkpoint()
                    self._told = 0
                participant.decided(txn, state)
