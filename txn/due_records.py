"""Finds the records that have reached an age and are this broker's work, for a sweep.

Each kind of record has an index by the moment that counts: deadlines, ends of transactions, times of groups. A sweep
asks for what is due, handles it, and asks when to wake next.

A broker that is alone trusts the stamps in the records. It asks the index for what is due. So its work is proportional
to what is due, and it keeps nothing in memory. The exception is a stamp of the future, which is older than a step of
the machine's clock. The broker reads what is not due yet once, when it starts, and remembers such records only.

Several brokers stamp records by different clocks, and an index in the order of their stamps is not in the order in
which the records are due (`storage.ages`). So each broker remembers when it saw each record of its own duty. It learns
of new ones by the watch of headers or groups. After a change of duties it reads the whole index once.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import trio

from storage.ages import DueTimes, due_ms
from storage.clock import WallClock
from storage.metadata.store import ABSENT, IndexHit, MetadataStore, Record, starting_with
from txn.counters import OpCounters
from txn.duty import Duty
from txn.headers import stamped_until
from txn.unreadable import Unreadable
from txn.wall_clock_timer import WallClockTimer

SWEEP_BATCH: Final = 100
"""Records of one page. It bounds memory, not how many are swept, and stays below etcd's 128 operations."""

AGAIN_MS: Final = 1_000
"""The earliest time after which a sweep looks again at what it could not finish."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of record. Each function raises RecordUnreadable for what this program does not write."""

    index: str
    """The index. Its keys are a prefix, a moment of fixed width in milliseconds, and something that differs."""
    prefixes: Sequence[str]
    moment_of: Callable[[str], int]
    """The moment in an index key."""
    delay_ms: int
    """How long after that moment the record is due."""
    span_of: Callable[[Record], int]
    """How old the record is when it is due, in milliseconds."""
    duty_of: Callable[[str], str]
    """The duty that a record of this key belongs to (`txn.duty`)."""
    check: Callable[[Record], object]
    """Decodes what a sweep needs of the record."""
    leaves_index: bool
    """Whether the sweep removes every record that it handles from the index. One that stays is then tried again."""


class DueRecords:
    """The due records of one kind, as one broker sees them."""

    def __init__(
        self,
        kind: Kind,
        metadata: MetadataStore,
        *,
        duty: Duty,
        now_ms: WallClock,
        timer: WallClockTimer,
        counters: OpCounters,
    ) -> None:
        """Set up.

        Args:
            kind: which records.
            metadata: holds them.
            duty: this broker's part of the work.
            now_ms: the wall clock.
            timer: wakes the sweep. Its delay is that of the kind.
            counters: counts queries.
        """
        self._kind = kind
        self._metadata = metadata
        self._duty = duty
        self._now_ms = now_ms
        self._timer = timer
        self._counters = counters
        self._times = DueTimes()
        """The records of this broker's duty. While it is alone, those with stamps of the future."""
        self._versions: dict[str, int] = {}
        """Their versions. Only what was seen is as old as it seems."""
        self._is_complete = False
        """Whether `_times` has all that the index held at the last change of duties."""
        self._looked_ms = 0
        """When the sweep began to look for what is due. What has become due since is left for the next sweep."""
        self.unreadable = Unreadable()
        duty.attach(self._duty_changed)

    def __len__(self) -> int:
        """How many records it remembers."""
        return len(self._times)

    def shown(self, record: Record) -> None:
        """Note that a record was written. Every write must be told, in order.

        Raises:
            RecordUnreadable: it is damaged.
        """
        index_key = self._index_key(record)
        if index_key is None:
            self.removed(record.key)
            return
        moment = self._kind.moment_of(index_key)
        if self._duty.is_alone:
            # This broker's clock stamped it just now, unless the watch shows an older record again.
            if self._versions.get(record.key) != record.version:
                self.removed(record.key)
            self._timer.at_latest(moment)
        elif self._is_mine(record.key):
            self._see(record, moment)

    def removed(self, key: str) -> None:
        """Note that a record was removed."""
        self._times.forget(key)
        self._versions.pop(key, None)

    def is_due(self, record: Record) -> bool:
        """Whether a record in the index is due, and is this broker's work."""
        if self._times.is_due(record.key, self._now_ms()):
            return True
        index_key = self._index_key(record) if self._duty.is_alone else None
        return index_key is not None and self._kind.moment_of(index_key) + self._kind.delay_ms <= self._now_ms()

    async def pages(self) -> AsyncGenerator[list[Record], None]:
        """Yield what is due now, each record once. Damaged ones are reported and left out."""
        self._looked_ms = self._now_ms()
        await self._see_all()
        for source in (self._stamped(), self._observed(self._looked_ms)):
            async with aclosing(source) as pages:
                async for page in pages:
                    yield page

    async def ring_next(self) -> None:
        """Set the timer to the moment at which something more may be due."""
        if self._duty.is_alone:
            for prefix in self._kind.prefixes:
                await self._ring_stamped(prefix)
        if self._times.next_ms is not None:
            self._timer.at_latest(self._times.next_ms - self._kind.delay_ms)

    async def _stamped(self) -> AsyncGenerator[list[Record], None]:
        for prefix in self._kind.prefixes if self._duty.is_alone else ():
            async with aclosing(self._index_pages(prefix, self._behind_due(prefix))) as pages:
                async for hits in pages:
                    if not self._duty.is_alone:
                        # Another broker has come. The change of duties wakes the sweep again.
                        return
                    if mine := self._readable(hits):
                        for record in mine:
                            # Its stamp is no longer of the future.
                            self.removed(record.key)
                        yield mine

    async def _observed(self, now: int) -> AsyncGenerator[list[Record], None]:
        again = now + max(AGAIN_MS, self._kind.delay_ms)
        while keys := self._times.due(now, limit=SWEEP_BATCH):
            found = (await self._metadata.fresh(keys)).records
            page: list[Record] = []
            for key in keys:
                record = found[key]
                if record is None or self._index_key(record) is None or not self._is_mine(key):
                    self.removed(key)
                elif record.version == self._versions[key]:
                    page.append(record)
            if page:
                yield page
            for key in keys:
                # The watch has made the sweep forget what it ended. What was written again is due later.
                if self._times.is_due(key, now):
                    self._times.put(key, again)

    async def _see_all(self) -> None:
        """Read the index, if duties have changed since. If alone, read only where a stamp may be of the future."""
        if self._is_complete:
            return
        # A change of duties meanwhile wakes the sweep again.
        self._is_complete = True
        try:
            await self._forget_others()
            for prefix in self._kind.prefixes:
                start, end = starting_with(prefix)
                if self._duty.is_alone:
                    # No record is due before its stamp.
                    start = stamped_until(prefix, self._looked_ms)[1]
                async with aclosing(self._index_pages(start, end)) as pages:
                    async for hits in pages:
                        self._see_new(hits)
        except BaseException:
            self._is_complete = False
            raise

    async def _forget_others(self) -> None:
        for number, key in enumerate(self._times.keys()):
            if number % SWEEP_BATCH == 0:
                await trio.lowlevel.checkpoint()
            if not self._is_mine(key):
                self.removed(key)

    def _see_new(self, hits: Iterable[IndexHit]) -> None:
        moments = {hit.record.key: hit.index_key for hit in hits}
        for record in self._readable(hits):
            # The watch may have shown a newer one. Without the duty, it has not shown what was written meanwhile.
            if record.version > self._versions.get(record.key, ABSENT):
                with self.unreadable.reading(record.key):
                    self._see(record, self._kind.moment_of(moments[record.key]))

    def _see(self, record: Record, moment_ms: int) -> None:
        """Begin to wait for a record. The index finds one whose stamp counts, so that one is not remembered."""
        kind = self._kind
        stamped, is_alone = moment_ms + kind.delay_ms, self._duty.is_alone
        moment = due_ms(stamped, kind.span_of(record), self._now_ms(), is_alone=is_alone)
        if is_alone and moment == stamped:
            self.removed(record.key)
        else:
            self._times.put(record.key, moment)
            self._versions[record.key] = record.version
        self._timer.at_latest(moment - kind.delay_ms)

    async def _ring_stamped(self, prefix: str) -> None:
        behind = self._behind_due(prefix)
        if self._kind.leaves_index:
            # What is still due could not be finished.
            due = await self._query(prefix, starting_with(prefix)[1], limit=len(self.unreadable) + 1)
            if not due or self._ring_first(due, behind):
                return
        later = await self._query(behind, starting_with(prefix)[1], limit=len(self.unreadable) + 1)
        self._ring_first(later, behind)

    def _ring_first(self, hits: Sequence[IndexHit], behind: str) -> bool:
        """Set the timer for the first of these records that a sweep can handle. Return whether there is one."""
        for hit in hits:
            if hit.record.key in self.unreadable:
                continue
            # For one that is due, and for one that turns out to be damaged.
            moment = self._now_ms() + max(AGAIN_MS - self._kind.delay_ms, 0)
            with self.unreadable.reading(hit.record.key):
                if hit.index_key >= behind:
                    moment = self._kind.moment_of(hit.index_key)
                elif not self._is_mine(hit.record.key):
                    continue
            self._timer.at_latest(moment)
            return True
        return False

    async def _index_pages(self, start: str, end: str) -> AsyncGenerator[list[IndexHit], None]:
        """What the index holds in [start, end), in pages. Entries that the caller leaves there do not appear again."""
        while True:
            page = await self._query(start, end, limit=SWEEP_BATCH)
            if page:
                # On a store in memory, the caller's work on a page may never yield.
                await trio.lowlevel.checkpoint()
                yield page
            if len(page) < SWEEP_BATCH:
                return
            start = page[-1].index_key + "\0"

    async def _query(self, start: str, end: str, *, limit: int) -> list[IndexHit]:
        return await self._counters.query(self._metadata, self._kind.index, start, end, limit=limit)

    def _readable(self, hits: Iterable[IndexHit]) -> list[Record]:
        """Those records that are this broker's work and not damaged."""
        found: list[Record] = []
        for hit in hits:
            with self.unreadable.reading(hit.record.key):
                if self._is_mine(hit.record.key):
                    self._kind.check(hit.record)
                    found.append(hit.record)
        return found

    def _behind_due(self, prefix: str) -> str:
        """The first index key that was not due by its stamp when the sweep looked."""
        return stamped_until(prefix, self._looked_ms - self._kind.delay_ms)[1]

    def _is_mine(self, key: str) -> bool:
        return self._duty.is_mine(self._kind.duty_of(key))

    def _index_key(self, record: Record) -> str | None:
        # A loop, because this runs for every change of a header, and a generator costs twice as much.
        for entry in record.indexes:
            if entry.name == self._kind.index:
                return entry.key
        return None

    def _duty_changed(self) -> None:
        self._is_complete = False
        self._timer.at_latest(self._now_ms() - self._kind.delay_ms)
