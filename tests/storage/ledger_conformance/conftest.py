"""The ledger stores that the conformance suite tests."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest

from storage.ledger_store import LedgerStore
from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import ledger_store
from tests.support.memory_ledgers import MemoryLedgers


class Place(Protocol):
    """Where the brokers of one cluster keep their ledgers."""

    def broker(self, broker_id: str = "broker-1") -> AbstractAsyncContextManager[LedgerStore]:
        """Run a broker's store, from its start until it is killed."""
        ...


class Directory:
    """A data folder, as each broker's process sees it. No broker counts as alive, so all can be fenced."""

    def __init__(self) -> None:
        self._files = SimulatedFiles(seed=1)
        self._metadata = MemoryStore()

    def broker(self, broker_id: str = "broker-1") -> AbstractAsyncContextManager[LedgerStore]:
        """See `Place`."""
        return ledger_store(self._files.process(), broker_id=broker_id, metadata=self._metadata)


@pytest.fixture(params=[Directory, MemoryLedgers])
def place(request: pytest.FixtureRequest) -> Place:
    """Make an empty place of each kind."""
    made: Place = request.param()
    return made
