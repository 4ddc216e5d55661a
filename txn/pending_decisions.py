"""Decisions that are being applied to one subscription, a step at a time, because one may name thousands of messages.

The first step is made at once. A task makes the others, and gives each of the decisions its turn.
"""

from collections.abc import Callable, Iterator

import trio

from storage.signal import Signal
from txn.pending_transaction import PendingTransaction

Applied = Callable[[PendingTransaction], None]


class PendingDecisions:
    """The decisions of one subscription, for `PendingAcks`."""

    def __init__(self) -> None:
        self._steps: dict[PendingTransaction, Iterator[None]] = {}
        """The remaining steps of each."""
        self._wake = Signal()
        self._ended = False
        """Whether nothing more is applied here."""
        self._changed = trio.Event()
        """Set and replaced when one was applied."""

    def begin(self, pending: PendingTransaction, steps: Iterator[None]) -> bool:
        """Make the first step of a decision. True if that was all; otherwise `run` makes the others."""
        self._steps[pending] = steps
        if self._step(pending):
            return True
        self._wake.set()
        return False

    async def run(self, applied: Applied) -> None:
        """Make the remaining steps until cancelled, and call `applied` after the last one of each decision.

        `applied` is not kept after the run. It may refer to the owner of this object, and a cycle would keep both in
        memory.
        """
        try:
            while True:
                await self._wake.wait()
                await self.finish(applied)
        finally:
            self._ended = True
            self._tell()

    async def finish(self, applied: Applied) -> None:
        """Make all remaining steps."""
        while self._steps:
            for pending in tuple(self._steps):
                if self._step(pending):
                    applied(pending)
                    self._tell()
                await trio.lowlevel.checkpoint()

    async def wait_applied(self) -> None:
        """Return once the decisions that are being applied now are applied, or never will be here."""
        for pending in tuple(self._steps):
            while pending in self._steps and not self._ended:
                await self._changed.wait()

    def _step(self, pending: PendingTransaction) -> bool:
        for _pause in self._steps[pending]:
            return False
        del self._steps[pending]
        return True

    def _tell(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
