"""The buffer of a topic that takes no transactions: every confirmed entry is readable."""

from collections.abc import Sequence

from storage.entry import Entry, EntryFormat, TxnId
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import Check, MetadataStore
from storage.position import Position
from storage.watermark import Watermark
from txn.errors import OwnershipLost, WrongDomain
from txn.states import TxnState


class PassThroughBuffer:
    """See `TransactionBuffer`. It keeps nothing, so it has nothing to recover, run or remove."""

    def __init__(self, ledger: ManagedLedger, metadata: MetadataStore, claim: Check) -> None:
        """Set up around an open managed ledger, for the owner with this claim."""
        self._ledger = ledger
        self._metadata = metadata
        self._claim = claim
        self.readable: Watermark = ledger.confirmed

    @property
    def takes_transactions(self) -> bool:
        """See `TransactionBuffer`."""
        return False

    def require_taking(self, txn: TxnId) -> None:
        """See `TransactionBuffer`."""
        raise WrongDomain(f"{self._ledger.name} is not a segment of a scalable topic, so it accepts no v5 transactions")

    def is_visible(self, entry: Entry) -> bool:
        """See `TransactionBuffer`."""
        return not entry.is_control

    async def prepare(self, entries: Sequence[Entry]) -> None:
        """See `TransactionBuffer`."""

    async def fates(self, places: Sequence[tuple[TxnId | None, Position]]) -> list[TxnState]:
        """See `TransactionBuffer`."""
        return [TxnState.COMMITTED for _ in places]

    def would_join(self, txn: TxnId) -> bool:
        """See `TransactionBuffer`."""
        return False

    async def join(self, txn: TxnId) -> None:
        """See `TransactionBuffer`."""
        self.require_taking(txn)

    def moment(self) -> int:
        """See `TransactionBuffer`."""
        return 0

    async def admit(self, txn: TxnId, arrived_at: int | None = None) -> None:
        """See `TransactionBuffer`."""
        self.require_taking(txn)

    def append(self, payload: bytes, message_count: int, txn: TxnId | None, entry_format: EntryFormat) -> Position:
        """See `TransactionBuffer`."""
        assert txn is None, "`admit` lets none through"
        return self._ledger.append(payload, message_count=message_count, entry_format=entry_format)

    def sealed(self) -> None:
        """See `TransactionBuffer`."""

    async def caught_up(self) -> None:
        """See `TransactionBuffer`. There are no decisions, but the claim counts (C19)."""
        found = await self._metadata.fresh([self._claim.key])
        if found.version(self._claim.key) != self._claim.expected:
            raise OwnershipLost(self._ledger.name)

    async def recover(self) -> None:
        """See `TransactionBuffer`."""

    async def run(self) -> None:
        """See `TransactionBuffer`."""

    def leave(self) -> None:
        """See `TransactionBuffer`."""

    async def discard(self) -> None:
        """See `TransactionBuffer`."""
