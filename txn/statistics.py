"""Counters of a broker's coordinators since it started."""

from dataclasses import dataclass

from txn.states import TxnState


@dataclass(slots=True)
class CoordinatorStatistics:
    """Counters since the broker started, for pulsar_txn_metadata_store_header_cas_total (T34)."""

    cas_ok: int = 0
    cas_conflict: int = 0
    """Lost to another move, and read again."""
    cas_reject: int = 0
    """Refused, because the opposite was decided."""
    opened: int = 0
    committed: int = 0
    aborted: int = 0

    def count(self, ended: TxnState) -> None:
        """A header was moved to this final state."""
        self.cas_ok += 1
        if ended is TxnState.COMMITTED:
            self.committed += 1
        else:
            self.aborted += 1
