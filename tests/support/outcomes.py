"""Ends the transactions of a load, through crashes of the broker, and records the outcome of each.

    outcomes = Outcomes(happenings)
    await outcomes.commit(running, random)   # the client repeats the request until it is answered
    outcomes.broker_died(random)             # gives up some unanswered ones
    await outcomes.finish()                  # afterwards all transactions that the broker knows have ended

When the broker dies, some commits are unanswered. The client retries some of them. Others are given up and aborted, and
the answer tells how they ended. The rest are given up until `finish`.
"""

from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

import trio

from tests.support.happenings import Happenings
from tests.support.history import Fate
from tidewire.client.transactions import Transaction as ClientTransaction
from tidewire.protocol.errors import OutcomeUnknown, TidewireError
from tidewire.protocol.refusals import TransactionConflict, TransactionNotFound

TIMEOUT_SECONDS: Final = 120.0
"""The timeout of transactions that will be ended."""

LEFT_SECONDS: Final = 2.0
"""The timeout of transactions that are left to time out."""

RETENTION_SECONDS: Final = 30.0
"""The least time for which a broker under such a load must remember an ended transaction."""

ASKED_AT_ONCE: Final = 32
"""Transactions whose outcome `finish` asks for at the same time. After an hour there are thousands."""

COMMIT_ASKED: Final = "commit asked"
COMMITTED: Final = "committed"
ABORT_ASKED: Final = "abort asked"

COMMIT: Final = "commit"
ABORT: Final = "abort"


class Fated(Protocol):
    """What is recorded about a transaction."""

    fate: Fate


@dataclass(eq=False, slots=True)
class Running:
    """A transaction of a load."""

    record: Fated
    handle: ClientTransaction
    begun: float
    asking: trio.CancelScope | None = None
    """While its commit is unanswered."""


class Outcomes:
    """See the module."""

    def __init__(self, happenings: Happenings) -> None:
        """Set up; nothing has ended yet."""
        self.complaints: list[str] = []
        self.unanswered_seen = 0
        """Commits that were unanswered when the broker died."""
        self._happenings = happenings
        self._asking: set[Running] = set()
        self._unresolved: list[Running] = []
        self._left: list[Running] = []

    def broker_died(self, random: Random) -> None:
        """Give up some of the unanswered commits."""
        for ours in [ours for ours in self._asking if ours.asking is not None]:
            self.unanswered_seen += 1
            if random.random() < 0.6:
                assert ours.asking is not None, "filtered above"
                ours.asking.cancel()

    def leave(self, ours: Running) -> None:
        """Leave the transaction to its time-out."""
        self._left.append(ours)

    async def abort(self, ours: Running) -> None:
        """Abort a transaction that nobody asked to commit."""
        self._happenings.note(ABORT_ASKED)
        try:
            with self._happenings.timed(ABORT):
                await ours.handle.abort()
        except TransactionConflict as conflict:
            self.complaints.append(f"{ours.record} was never committed, but cannot be aborted: {conflict}")
        except OutcomeUnknown:
            return
        except TidewireError as error:
            self._complain_if_recent(ours, error)
            return
        ours.record.fate = Fate.ABORTED

    async def commit(self, ours: Running, random: Random, *, asks_at_once: bool = False) -> None:
        """Commit a transaction that was sent completely. If given up, `asks_at_once` makes it learn the outcome now."""
        ours.record.fate = Fate.UNKNOWN
        self._happenings.note(COMMIT_ASKED)
        self._asking.add(ours)
        try:
            with trio.CancelScope() as ours.asking, self._happenings.timed(COMMIT):
                await ours.handle.commit()
                ours.record.fate = Fate.COMMITTED
                self._happenings.note(COMMITTED)
        except TidewireError as error:
            self.complaints.append(f"a commit of {ours.record}, sent whole and in time, failed: {error!r}")
        finally:
            self._asking.discard(ours)
        if ours.asking is not None and ours.asking.cancelled_caught:
            if asks_at_once or random.random() < 0.5:
                await self._ask_by_aborting(ours)
            else:
                self._unresolved.append(ours)

    async def finish(self) -> None:
        """Learn how the other transactions ended. Those left to their time-out must be aborted."""
        async with trio.open_nursery() as nursery:
            for _ in range(ASKED_AT_ONCE):
                nursery.start_soon(self._finish_some)

    async def _finish_some(self) -> None:
        while self._unresolved:
            await self._ask_by_aborting(self._unresolved.pop())
        while self._left:
            ours = self._left.pop()
            try:
                await ours.handle.abort()
            except TransactionConflict as conflict:
                self.complaints.append(f"{ours.record} was never committed, but cannot be aborted: {conflict}")
            except (TransactionNotFound, OutcomeUnknown) as unknown:
                # Nobody asked to commit it, so it can only be aborted.
                self._complain_if_recent(ours, unknown)
            ours.record.fate = Fate.ABORTED

    async def _ask_by_aborting(self, ours: Running) -> None:
        """Learn how an unanswered commit ended. If it never arrived, this aborts the transaction."""
        try:
            await ours.handle.abort()
        except TransactionConflict:
            ours.record.fate = Fate.COMMITTED
        except TidewireError as error:
            self._complain_if_recent(ours, error)
        else:
            ours.record.fate = Fate.ABORTED

    def _complain_if_recent(self, ours: Running, error: TidewireError) -> None:
        if trio.current_time() - ours.begun < RETENTION_SECONDS:
            self.complaints.append(f"the broker does not report the outcome of {ours.record}: {error!r}")
