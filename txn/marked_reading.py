"""Learns what a log with markers says by reading it: at a takeover, and for ranges of older entries.

An owner begins with the last snapshot and takes the entries behind it. So its work is bounded, however long the log is
(K26). The index of a closed ledger stands in the snapshot at the start of the ledger behind it. If that is damaged, the
index is made again from the markers of its own ledger (K12, K18).
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

import structlog
import trio

from storage.aborted_offsets import AbortedOffsets, UnknownIndexVersion, searched
from storage.entry import Entry, EntryFormat
from storage.errors import EntriesUnreadable, LedgerNotFound, ProducersUnreadable
from storage.managed_ledger import ManagedLedger
from storage.position import EARLIEST, Position
from txn.marked_log import Described, LedgerAborts, MarkedLog, SnapshotDamaged, aborts_before
from txn.stable_offset import Place

Describe = Callable[[Entry], Described | None]
"""What an entry says of its producer. It never raises."""

OnDamage = Callable[[ManagedLedger, Exception], None]
"""What to do about entries that cannot be read: go on behind them, or raise."""

SEARCHED_AT_ONCE: Final = 2_000
"""Aborts that a search looks at in one step. It takes about 4 ms."""

INDEXES_CACHED_MAX: Final = 16
"""Closed ledgers of one log whose index stays in memory. Reading further back loads an index again."""

_FIRST_BYTES: Final = 1024 * 1024
_BYTES_FACTOR: Final = 8
"""How far back a takeover looks for a snapshot: first so far, and then so many times as far."""

_READ_ENTRIES: Final = 1_000
_READ_BYTES: Final = 1024 * 1024

log = structlog.get_logger(__name__)


async def read_marked_log(ledger: ManagedLedger, describe: Describe) -> MarkedLog:
    """What the log says up to its last entry.

    Damaged entries say nothing. A transaction whose marker is among them stays open.

    Raises:
        ProducersUnreadable: a later release wrote its snapshots, or everything that says what was open is damaged.
    """
    last = ledger.last_position
    first = Position(last.ledger, 0)
    if ledger.last_entry(last.ledger) < 0:
        return MarkedLog()  # There was no entry, or all were trimmed.
    size, back = await ledger.bytes_upto(last), _FIRST_BYTES
    while True:
        begin = max(first, ledger.next_after(await ledger.position_within(max(0, size - back))))
        if begin == first:
            return await _taken_from(ledger, begin, await _state_before(ledger, first.ledger, describe), describe)
        found = await _taken(ledger, begin, None, describe, on_damage=_report)
        if found is not None:
            return found
        back *= _BYTES_FACTOR


async def _state_before(ledger: ManagedLedger, number: int, describe: Describe) -> MarkedLog:
    """What the log says up to the start of one of its ledgers."""
    first = Position(number, 0)
    try:
        entries = await ledger.read(first, upto=first, entries_max=1, bytes_max=1)
        if not entries:
            raise LedgerNotFound(f"ledger {number} is gone")
        if entries[0].format is not EntryFormat.PRODUCERS:
            return MarkedLog()
        return _resumed(ledger, entries[0])
    except (EntriesUnreadable, SnapshotDamaged) as damaged:
        before = ledger.previous(first)
        if before == EARLIEST:
            raise ProducersUnreadable(ledger.name, str(damaged)) from damaged
        _report(ledger, damaged)
        state = await _state_before(ledger, before.ledger, describe)
        return await _taken_from(ledger, Position(before.ledger, 0), state, describe)


async def _taken_from(ledger: ManagedLedger, begin: Position, state: MarkedLog, describe: Describe) -> MarkedLog:
    found = await _taken(ledger, begin, state, describe, on_damage=_report)
    assert found is not None, "it was known from the start"
    return found


async def _taken(
    ledger: ManagedLedger, begin: Position, state: MarkedLog | None, describe: Describe, *, on_damage: OnDamage
) -> MarkedLog | None:
    """Take the entries of one ledger from `begin` on. None if the state is not known and no snapshot comes."""
    last = Position(begin.ledger, ledger.last_entry(begin.ledger))
    at = begin
    if state is not None:
        state.enter(begin.ledger)
    while at <= last:
        try:
            entries = await ledger.read(at, upto=last, entries_max=_READ_ENTRIES, bytes_max=_READ_BYTES)
        except EntriesUnreadable as damage:
            on_damage(ledger, damage)
            at = Position(at.ledger, damage.last.entry + 1)
            continue
        if not entries:
            break
        for entry in entries:
            try:
                state = _next(ledger, state, entry, describe)
            except SnapshotDamaged as damage:
                # It says nothing that the entries before it did not say.
                _report(ledger, damage)
        at = Position(at.ledger, entries[-1].position.entry + 1)
    return state


def _next(ledger: ManagedLedger, state: MarkedLog | None, entry: Entry, describe: Describe) -> MarkedLog | None:
    if entry.format is EntryFormat.PRODUCERS:
        return _resumed(ledger, entry)
    if state is not None and (described := describe(entry)) is not None:
        state.take(described, Place(entry.first_index, entry.position), entry.timestamp_ms)
    return state


def _resumed(ledger: ManagedLedger, snapshot: Entry) -> MarkedLog:
    try:
        return MarkedLog.from_snapshot(snapshot.payload, snapshot.position.ledger)
    except UnknownIndexVersion as later:
        raise ProducersUnreadable(ledger.name, str(later)) from later


def _report(ledger: ManagedLedger, damage: Exception) -> None:
    log.error("what damaged entries said of producers is lost", topic=ledger.name, reason=str(damage))


def _refuse(ledger: ManagedLedger, damage: Exception) -> None:
    raise ProducersUnreadable(ledger.name, str(damage)) from damage


class AbortedRanges:
    """The aborted transactions of a log, by the ledgers of their markers.

    Those of the ledger that grows are in `state`. Others are read when they are needed.
    """

    def __init__(self, ledger: ManagedLedger, state: MarkedLog, describe: Describe) -> None:
        self._ledger = ledger
        self._describe = describe
        self.state = state
        self._known: OrderedDict[int, LedgerAborts] = OrderedDict()
        """Those of ledgers before. The most recently used one comes last."""

    def closed(self, ledger: int, aborts: LedgerAborts) -> None:
        """Note the aborts of a ledger that another one has followed."""
        self._known[ledger] = aborts

    @property
    def hides_nothing(self) -> bool:
        """Whether the log has no marker, no snapshot and no aborted entry."""
        return not self._ledger.is_marked

    def may_hide(self, ledger: int) -> bool:
        """Whether anything in this ledger can be hidden: a marker, a snapshot or an aborted entry."""
        return self._ledger.may_be_marked(ledger)

    async def prepare(self, entries: Sequence[Entry]) -> None:
        """Load what `hides` needs for these entries.

        Raises:
            ProducersUnreadable, LedgerNotFound: see `overlapping`.
        """
        ends = {e.position.ledger: e.first_index + e.message_count for e in entries if e.txn is not None}
        used: set[int] = set()
        while True:
            missing = None
            for ledger, end in ends.items():
                chain, missing = self._chain(ledger, end)
                if missing is not None:
                    break
                used.update(chain)
            if missing is None:
                self._evict(used)
                return
            loaded = await self._load(missing)
            self._known.setdefault(missing, loaded)

    def hides(self, entry: Entry) -> bool:
        """Whether the decided entry was aborted. Prepare it before, in the same step."""
        if entry.txn is None:
            return False
        offset = entry.first_index
        chain, missing = self._chain(entry.position.ledger, offset + 1)
        assert missing is None, "prepared"
        for aborted, is_hit in searched(_from(chain.values(), offset), offset, offset + 1):
            if aborted.producer_id == entry.txn.most:
                # What a producer aborts later began behind its first abort that ended here or later.
                return is_hit
        return False

    async def _prepared(self, ledger: int, end: int) -> list[LedgerAborts]:
        """What can hide entries of this ledger below the offset `end`, in order.

        Raises:
            ProducersUnreadable: it cannot be found out.
            LedgerNotFound: the ledger was trimmed.
        """
        while True:
            chain, missing = self._chain(ledger, end)
            if missing is None:
                self._evict(chain)
                return list(chain.values())
            loaded = await self._load(missing)
            self._known.setdefault(missing, loaded)

    async def overlapping(self, ledger: int, start: int, end: int) -> list[AbortedOffsets]:
        """The aborted transactions with records from `start` to `end`, exclusive; `start` is in this ledger (K7, K8).

        Raises:
            ProducersUnreadable: it cannot be found out.
            LedgerNotFound: the ledger was trimmed.
        """
        found = []
        chain = await self._prepared(ledger, end)
        for number, (aborted, is_hit) in enumerate(searched(_from(chain, start), start, end), 1):
            if is_hit:
                found.append(aborted)
            if number % SEARCHED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return found

    def _chain(self, ledger: int, end: int) -> tuple[dict[int, LedgerAborts], int | None]:
        """The aborts from this ledger on that may matter below `end`, and the first ledger whose aborts are missing."""
        chain: dict[int, LedgerAborts] = {}
        while ledger < self.state.ledger:
            known = self._known.get(ledger)
            if known is None:
                return chain, ledger
            chain[ledger] = known
            if known.last_stable is None or known.last_stable >= end:
                return chain, None
            following = self._ledger.next_after(Position(ledger, self._ledger.last_entry(ledger))).ledger
            if following > self.state.ledger:
                return chain, None
            ledger = following
        return {**chain, self.state.ledger: self.state.aborts}, None

    async def _load(self, ledger: int) -> LedgerAborts:
        if not self._ledger.has_ledger(ledger):
            raise LedgerNotFound(f"ledger {ledger} is gone")
        start = self._ledger.next_after(Position(ledger, self._ledger.last_entry(ledger)))
        try:
            head = await self._ledger.read(start, upto=start, entries_max=1, bytes_max=1)
            if not head:
                raise LedgerNotFound(f"ledger {ledger} is gone")
            if head[0].format is EntryFormat.PRODUCERS:
                return aborts_before(head[0].payload)
            # There was nothing to tell: no abort in the ledger, and no open transaction.
            return LedgerAborts(last_stable=head[0].first_index)
        except UnknownIndexVersion as later:
            raise ProducersUnreadable(self._ledger.name, str(later)) from later
        except (EntriesUnreadable, SnapshotDamaged) as damaged:
            log.error("an index of aborted transactions is made again", topic=self._ledger.name, reason=str(damaged))
            return await self._made_again(ledger)

    async def _made_again(self, ledger: int) -> LedgerAborts:
        state = await _state_before(self._ledger, ledger, self._describe)
        found = await _taken(self._ledger, Position(ledger, 0), state, self._describe, on_damage=_refuse)
        assert found is not None, "it was known from the start"
        info = next((info for info in self._ledger.closed if info.id == ledger), None)
        if info is None:
            raise LedgerNotFound(f"ledger {ledger} is gone")
        end = info.first_index + info.messages
        return LedgerAborts(found.aborts.index, found.stable.stable_at(end))

    def _evict(self, used: Collection[int]) -> None:
        """Forget the least recently used ones, but none of `used`: one read may need them all."""
        for ledger in used:
            if ledger in self._known:
                self._known.move_to_end(ledger)
        confirmed = self._ledger.confirmed.value.ledger
        while len(self._known) > INDEXES_CACHED_MAX + len(used):
            oldest = next(iter(self._known))
            if oldest >= confirmed:
                break  # The snapshot that has its aborts is not durable yet.
            del self._known[oldest]


def _from(chain: Iterable[LedgerAborts], start: int) -> Iterator[Iterator[AbortedOffsets]]:
    return (aborts.index.from_offset(start) for aborts in chain)
