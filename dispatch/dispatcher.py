"""The task that moves entries of one subscription from its source to its consumers.

It parks on one signal. These events set it: the readable position rose; a consumer came, left, granted permits or
became writable; entries must be sent again; the mark-delete position became durable; the source was sealed. After each
wake-up the task looks at all of its state. Without an event nothing sets the signal, so an idle dispatcher is never
scheduled.

Besides the signal, it only waits for reads. It judges changes during a read after the read. It decides and hands
entries over without a pause, so a cancellation never leaves a half-changed state.

    handled_upto   every entry at or below was sent, skipped, withheld or acknowledged, or waits in `redelivery`
    stalled        before which damaged entry it stopped; a seek or an acknowledgement of the entry lets it go on
    generation     counts rewinds, and consumers that gave all back; entries read before a change are dropped

Chunks of one message go to one consumer (chunks.py), in order. So entries kept for a consumer come first once that
consumer has room, then entries to send again, then new ones. If earlier chunks become due during a read, the entries of
that read are dropped.
"""

from collections.abc import Sequence
from math import ceil
from typing import Final, NamedTuple

import trio

from dispatch.chunks import KEPT_MAX, Chunk, PartialMessages
from dispatch.consumer import Consumer, Delivery
from dispatch.permits import UNACKED_MESSAGES_PER_CONSUMER_MAX, UNACKED_MESSAGES_PER_SUBSCRIPTION_MAX
from dispatch.policy import Candidate, Piece, Policy
from dispatch.redelivery import Redelivery
from dispatch.source import Source
from dispatch.withheld import Withheld
from storage.cursor import BaseCursor
from storage.entry import Entry
from storage.errors import LedgerCorrupt
from storage.position import EARLIEST, Position
from storage.ranges import words_from_bits
from storage.signal import Signal

CHUNK_ENTRIES_MAX: Final = 512
"""Entries read and handed over at once."""

CHUNK_BYTES_MAX: Final = 1024 * 1024
"""Payload bytes read and handed over at once, unless a single entry is larger. An outlet may exceed its bound by as
much."""


class _Sendable(NamedTuple):
    """An entry to be sent."""

    entry: Entry
    messages: int
    """Unacknowledged messages; at least 1."""
    ack_bits: tuple[int, ...] | None
    chunk: Chunk | None


class Dispatcher:
    """See the module's docstring. The subscription changes its state and calls `wake`."""

    def __init__(
        self, source: Source, cursor: BaseCursor, withheld: Withheld, policy: Policy, *, tracks_unacked: bool
    ) -> None:
        self.policy = policy
        self.withheld = withheld
        self.tracks_unacked = tracks_unacked
        """Whether the holder of each entry is remembered, so that the entry can be sent again alone (shared
        subscriptions)."""
        self.consumers: list[Consumer] = []
        self.redelivery: Redelivery[Consumer] = Redelivery()
        self._begun: PartialMessages[Consumer] = PartialMessages()
        self.signal = Signal()
        self.is_blocked = False
        """Whether a bound on unacknowledged messages stopped the last step. An acknowledgement should then wake the
        task."""
        self._source = source
        self._cursor = cursor
        self._handled_upto = cursor.mark_delete
        self._generation = 0
        self._turn = 0
        self._is_closed = False
        self._seen_in_front: Position | None = None
        """The first unacknowledged entry of a sealed source, once it is known to wait for a consumer."""
        self._stalled: tuple[int, Position, LedgerCorrupt] | None = None
        """The generation, entry and damage at which reading new entries stopped; None without damage."""
        self._messages_per_entry = 1.0
        """Average of the last chunk. It tells how many entries to read for the available permits."""

    @property
    def handled_upto(self) -> Position:
        """See the module's docstring; EARLIEST if everything is to be looked at again."""
        return self._handled_upto

    def wake(self) -> None:
        """Something changed."""
        self.signal.set()

    def close(self) -> None:
        """Let `run` return."""
        self._is_closed = True
        self.wake()

    def rewind(self) -> None:
        """Send every unacknowledged entry again, in order, as if nothing had been sent.

        The entries are determined when the dispatcher continues, so a seek may come before or after this call.
        """
        self._generation += 1
        self._handled_upto = EARLIEST
        self.redelivery.clear()
        self.wake()

    def go_back(self, position: Position) -> None:
        """Send the unacknowledged entries from `position` on again, in order."""
        if position <= self._handled_upto:
            self._generation += 1
            self._handled_upto = position.before()
        self.wake()

    def send_again(self, position: Position) -> None:
        """Send one set-aside entry again, independent of its earlier holder."""
        # An entry above it is sent in its turn.
        if position <= self._handled_upto:
            self.redelivery.give_back(position)
        self.wake()

    def left(self, consumer: Consumer) -> None:
        """Send the entries of a consumer that left to others."""
        self._generation += 1
        self.redelivery.left(consumer)
        self._begun.left(consumer)
        self.wake()

    def send_all_again(self, consumer: Consumer) -> None:
        """Send the entries of a consumer again. Messages that it has only in part go to the same consumer."""
        self._generation += 1
        self.redelivery.send_all_again(consumer)
        self.wake()

    async def run(self) -> None:
        """Send until closed.

        An error of the source ends it, except damage: then consumers are told, and other subscriptions go on.
        """
        self._source.readable.attach(self.signal)
        self._source.attach_sealed(self.signal)
        durable = self._cursor.durable
        durable.attach(self.signal)
        try:
            while not self._is_closed:
                if durable is not self._cursor.durable:
                    durable.detach(self.signal)
                    durable = self._cursor.durable
                    durable.attach(self.signal)
                if await self._step():
                    # Reads from memory may never pause, but other consumers and cancellation must not wait.
                    await trio.lowlevel.checkpoint()
                else:
                    self._announce_end()
                    await self.signal.wait()
        finally:
            durable.detach(self.signal)
            self._source.detach_sealed(self.signal)
            self._source.readable.detach(self.signal)

    async def _step(self) -> bool:
        """Send one chunk. False if there is nothing to do until the signal is set."""
        damage = self.withheld.damage
        if damage is not None:
            self._tell(damage)
            return False
        room = self._room()
        if room <= 0:
            return await self._pass_hidden()
        if run := self._kept_run():
            await self._send_again(run, is_kept=True)
        elif run := self.redelivery.run(min(room, CHUNK_ENTRIES_MAX)):
            await self._send_again(run)
        else:
            return await self._send_next(room)
        return True

    def _kept_run(self) -> list[Position]:
        """The entries kept for a consumer that has room now, up to that room."""
        if not self.redelivery.kept:
            return []
        for consumer, candidate in zip(self.consumers, self._candidates(), strict=True):
            if candidate.room and (run := self.redelivery.kept_run(consumer, min(candidate.room, CHUNK_ENTRIES_MAX))):
                return run
        return []

    async def _pass_hidden(self) -> bool:
        """Acknowledge hidden entries at the front of a sealed source, which would not drain without consumers."""
        first = self._cursor.first_unacknowledged()
        if self._source.sealed_end is None or first > self._source.readable.value or first == self._seen_in_front:
            return False
        try:
            entries = await self._source.read(first, entries_max=CHUNK_ENTRIES_MAX, bytes_max=CHUNK_BYTES_MAX)
        except LedgerCorrupt:
            # The next consumer gets the report.
            self._seen_in_front = first
            return False
        for entry in entries:
            if self._source.is_visible(entry):
                self._seen_in_front = entry.position
                return False
            self._pass(entry.position)
        return self._cursor.first_unacknowledged() != first

    def _pass(self, position: Position) -> None:
        """Nobody may see it, so it is acknowledged for everybody and the mark-delete position passes it."""
        self._cursor.acknowledge(position)
        self.redelivery.forget(position)

    async def _send_again(self, run: Sequence[Position], *, is_kept: bool = False) -> None:
        generation = self._generation
        span = run[-1].entry - run[0].entry + 1
        try:
            entries = await self._source.read(run[0], entries_max=span, bytes_max=CHUNK_BYTES_MAX)
        except LedgerCorrupt as damage:
            # It stays unacknowledged, and is tried again when the subscription is reopened.
            self.redelivery.set_aside(run[0])
            self._tell(str(damage))
            return
        if generation != self._generation or (not is_kept and self._kept_run()):
            return
        read_upto = entries[-1].position if entries else run[-1]
        found = {entry.position for entry in entries}
        for position in run:
            if position <= read_upto and position not in found:
                # The log was trimmed there, so the entry is gone.
                self.redelivery.forget(position)
        # The read also returns entries in between, and some may have been acknowledged during the read.
        wanted = set(run)
        self._assign(
            [entry for entry in entries if entry.position in wanted and self.redelivery.is_waiting(entry.position)]
        )

    async def _send_next(self, room: int) -> bool:
        limit = self._source.readable.value
        if self._cursor.is_full:
            # Too much is acknowledged out of order. Only entries below it, which fill holes, may be sent.
            limit = min(limit, self._cursor.highest)
            self.is_blocked = True
        if self.redelivery.kept >= KEPT_MAX:
            self.is_blocked = True
            return False
        start = self._cursor.next_unacknowledged(self._handled_upto)
        if start > limit:
            self._handled_upto = max(self._handled_upto, limit)
            return False
        generation = self._generation
        if self._stalled is not None and self._stalled[:2] == (generation, start):
            self._tell(str(self._stalled[2]))
            return False
        entries_max = min(CHUNK_ENTRIES_MAX, ceil(room / self._messages_per_entry))
        try:
            read = await self._source.read(start, entries_max=entries_max, bytes_max=CHUNK_BYTES_MAX)
        except LedgerCorrupt as damage:
            # Nothing behind it is sent. An operator decides by a seek whether to pass it.
            self._stalled = (generation, start, damage)
            return True
        if generation != self._generation or self._kept_run():
            return True
        entries = [entry for entry in read if entry.position <= limit]
        if not entries:
            self._handled_upto = max(self._handled_upto, limit)
            return True
        self._messages_per_entry = sum(max(1, entry.message_count) for entry in entries) / len(entries)
        sent, left = self._assign(entries)
        sent_upto = sent[-1] if sent else EARLIEST
        handled_upto = entries[-1].position
        for position in left:
            if position > sent_upto:
                handled_upto = position.before()
                break
            # A later entry went to another consumer, so this one is not read again in order.
            self.redelivery.postpone(position)
        self._handled_upto = max(self._handled_upto, handled_upto)
        return True

    def _tell(self, reason: str) -> None:
        """Tell each consumer about damage at its next entries."""
        for consumer in self.consumers:
            consumer.tell_damage(reason)

    def _assign(self, entries: Sequence[Entry]) -> tuple[list[Position], list[Position]]:
        """Skip hidden entries, send what can be sent, and keep chunks whose consumer has no room.

        Returns the sent entries and those without a consumer, each in order.
        """
        sendable = [item for entry in entries if (item := self._sendable(entry)) is not None]
        within = self._within_unacked_room(sendable)
        messages = [item.messages for item in sendable[:within]]
        assignment = self.policy(self._candidates(), messages, self._turn, self._pieces(sendable[:within]))
        self._turn = assignment.turn
        for index, share in assignment.shares:
            self._send(self.consumers[index], [sendable[number] for number in share])
        for number, index in assignment.kept:
            self.redelivery.keep(self.consumers[index], sendable[number].entry.position)
        sent = sorted(number for _index, share in assignment.shares for number in share)
        left = [*assignment.left, *range(within, len(sendable))]
        positions = [item.entry.position for item in sendable]
        return [positions[number] for number in sent], [positions[number] for number in left]

    def _pieces(self, sendable: Sequence[_Sendable]) -> dict[int, Piece]:
        """The chunks among them, in the form that the policy takes."""
        chunks = {number: item.chunk for number, item in enumerate(sendable) if item.chunk is not None}
        if not chunks:
            return {}
        indexes = {consumer: index for index, consumer in enumerate(self.consumers)}
        pieces = {}
        for number, chunk in chunks.items():
            holder = self._begun.holder(chunk.message)
            pieces[number] = Piece(chunk.message, None if holder is None else indexes[holder])
        return pieces

    def _sendable(self, entry: Entry) -> _Sendable | None:
        """The part of an entry to send. None if it is acknowledged, or was just skipped."""
        if self._cursor.is_acknowledged(entry.position):
            return None
        if not self._source.is_visible(entry):
            self._pass(entry.position)
            return None
        bits = self.sendable_bits(entry.position)
        if bits is None:
            chunk = self._source.chunk_of(entry) if self.tracks_unacked else None
            return _Sendable(entry, max(1, entry.message_count), None, chunk)
        if not bits:
            # The transaction that reserved it will give it back or acknowledge it.
            self.redelivery.set_aside(entry.position)
            return None
        return _Sendable(entry, bits.bit_count(), words_from_bits(bits), None)

    def sendable_bits(self, position: Position) -> int | None:
        """Bit i is 1 if message i is neither acknowledged nor withheld. None if no message of the entry is."""
        bits = self._cursor.remaining_bits(position)
        unreserved = self.withheld.unreserved(position)
        if unreserved is None:
            return bits
        return unreserved if bits is None else unreserved & bits

    def _send(self, consumer: Consumer, items: Sequence[_Sendable]) -> None:
        deliveries = []
        for entry, messages, ack_bits, chunk in items:
            deliveries.append(Delivery(entry, self.redelivery.count(entry.position), ack_bits))
            if self.tracks_unacked:
                self.redelivery.sent(consumer, entry.position, messages)
            if chunk is not None:
                self._begun.sent(chunk, consumer)
        consumer.send(deliveries, sum(item.messages for item in items))

    def _within_unacked_room(self, sendable: Sequence[_Sendable]) -> int:
        """How many of them the subscription's bound allows. The last one may exceed it, as with permits."""
        if not self.tracks_unacked:
            return len(sendable)
        room = UNACKED_MESSAGES_PER_SUBSCRIPTION_MAX - self.redelivery.unacked_total
        for number, item in enumerate(sendable):
            if room <= 0:
                return number
            room -= item.messages
        return len(sendable)

    def _room(self) -> int:
        """Messages that the consumers accept now, up to what one chunk needs.

        Each new consumer and each grant of permits causes a step. So a step must not examine all consumers.
        """
        self.is_blocked = False
        enough = ceil(CHUNK_ENTRIES_MAX * self._messages_per_entry)
        room = 0
        for consumer in self.consumers:
            if consumer.permits.available > 0:
                room += self._candidate(consumer).room
                if room >= enough:
                    break
        return room

    def _candidates(self) -> list[Candidate]:
        """The consumers in the form that the policy takes."""
        self.is_blocked = False
        return [self._candidate(consumer) for consumer in self.consumers]

    def _candidate(self, consumer: Consumer) -> Candidate:
        permits = consumer.permits.available
        if self.tracks_unacked:
            allowed = min(
                UNACKED_MESSAGES_PER_SUBSCRIPTION_MAX - self.redelivery.unacked_total,
                UNACKED_MESSAGES_PER_CONSUMER_MAX - self.redelivery.unacked(consumer),
            )
            if allowed < permits:
                permits = allowed
                self.is_blocked = True
        return Candidate(permits, consumer.outlet.writable, consumer.priority)

    @property
    def is_drained(self) -> bool:
        """Whether everything up to the end of a sealed source is durably acknowledged."""
        return self._stands_at_end(self._cursor.durable.value)

    def _stands_at_end(self, position: Position) -> bool:
        end = self._source.sealed_end
        return end is not None and (position >= end or self._source.next_after(position) > end)

    def _announce_end(self) -> None:
        if self._source.sealed_end is None:
            return
        is_over = self.is_drained
        if not self._cursor.is_durable:
            is_over = not self.redelivery.waiting and self._stands_at_end(
                max(self._handled_upto, self._cursor.mark_delete)
            )
        if not is_over:
            return
        for consumer in self.consumers:
            consumer.tell_end()
