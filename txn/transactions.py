"""A broker's part in transactions: it decides them, learns of decisions, ends them on time and forgets them.

    transactions = Transactions(metadata, TransactionSettings(...), now_ms)
    await transactions.start(nursery)            # from now on this broker hears of every decision
    ...                                          # topics join transactions.headers
    transactions.timeout_sweep.run, ...          # background work; the caller restarts what fails

Three timers connect the parts. The code that makes something with a deadline tells the timer of the sweep that ends it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from storage.clock import WallClock
from storage.metadata.store import MetadataStore
from txn.coordinator import Coordinator
from txn.counters import OpCounters
from txn.duty import EVERYTHING, Duty
from txn.group_settlement import GroupSettlement
from txn.group_sweep import GroupSweep
from txn.header_watch import HeaderWatch
from txn.sweeps import HeaderSweep, TimeoutSweep
from txn.wall_clock_timer import WallClockTimer


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """What an operator decides about transactions."""

    coordinators: int
    """How many coordinator ids clients may spread over."""
    timeout_ms_max: int
    """The longest a transaction may stay open."""
    retention_ms: int
    """How long after its end a transaction stays known to clients."""

    @property
    def group_age_ms(self) -> int:
        """The age at which all attempts of a group are over."""
        return max(self.timeout_ms_max, self.retention_ms)


class Transactions:
    """See the module's docstring."""

    def __init__(
        self, metadata: MetadataStore, settings: TransactionSettings, now_ms: WallClock, duty: Duty = EVERYTHING
    ) -> None:
        """Put the parts together. Reads and writes nothing. `duty` is this broker's part of the background work."""
        self._metadata = metadata
        self._settings = settings
        self._now_ms = now_ms
        self._duty = duty
        deadlines = WallClockTimer(now_ms)
        self._finals = WallClockTimer(now_ms, delay_ms=settings.retention_ms)
        onces = WallClockTimer(now_ms, delay_ms=settings.group_age_ms)
        self.counters = OpCounters()
        self.headers = HeaderWatch(metadata)
        self.coordinator = Coordinator(
            metadata,
            count=settings.coordinators,
            now_ms=now_ms,
            timeout_ms_max=settings.timeout_ms_max,
            final_timer=self._finals,
            once_timer=onces,
            counters=self.counters,
        )
        self.timeout_sweep = TimeoutSweep(
            metadata, self.coordinator, now_ms=now_ms, timer=deadlines, counters=self.counters, duty=duty
        )
        self.headers.attach(self.timeout_sweep.due)
        self.group_sweep = GroupSweep(
            metadata, age_ms=settings.group_age_ms, now_ms=now_ms, timer=onces, counters=self.counters, duty=duty
        )
        self.group_settlement = GroupSettlement(
            self.coordinator.groups, metadata, duty=duty, counters=self.counters, follower=self.group_sweep.due
        )

    def header_sweep(self, redrive: Callable[[str], Awaitable[bool]]) -> HeaderSweep:
        """Make the sweep that deletes headers of finished transactions. See `HeaderSweep` for `redrive`."""
        made = HeaderSweep(
            self._metadata,
            retention_ms=self._settings.retention_ms,
            now_ms=self._now_ms,
            timer=self._finals,
            redrive=redrive,
            counters=self.counters,
            duty=self._duty,
        )
        self.headers.attach(made.due)
        return made

    async def start(self, nursery: trio.Nursery) -> None:
        """Follow headers and groups in `nursery`. On return, all earlier decisions are known."""
        await nursery.start(self.headers.run)
        await nursery.start(self.group_settlement.run)
