"""The unanswered messages of one segment's producer, in order, and how they are batched into frames. Pure.

Batches form without a timer. A message leaves at once if nothing of its transaction is in flight to the segment; all
messages outside transactions count as one transaction here. Otherwise messages gather until the frame in flight is
answered, or until they fill a frame. So a lone message is not delayed, and a stream of them costs one frame per
thousand.

The outbox keeps order. Frames leave in the order of their messages, and a frame holds consecutive messages only. After
a lost connection, the frames taken back leave before anything else, with the same messages and sequence ids.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from tidewire.client.sending import Batching, Chunking, Outgoing, SendFrame
from tidewire.client.transactions import Transaction
from tidewire.protocol.unanswered import End, Fate, fate, remembers

FRAMES_IN_FLIGHT_MAX: Final = 128
"""Frames of one segment that may be unanswered at once; the producer's `Room` bounds their contents as well."""


class Outbox:
    """One segment's messages until they are answered."""

    def __init__(self, batching: Batching, chunking: Chunking | None = None) -> None:
        """Start empty."""
        self._batching = batching
        # A message that may need chunks travels alone.
        self._wanted_bytes_max = batching.bytes_max
        if chunking is not None:
            self._wanted_bytes_max = min(batching.bytes_max, chunking.chunk_size_max)
        # The largest batch that this session's broker accepts.
        self._batched_bytes_max = self._wanted_bytes_max
        self._next_sequence_id = 0
        self._stored_upto = -1
        """The highest sequence id that the broker has confirmed."""
        self._waiting: deque[Outgoing] = deque()
        # Of the waiting messages: their size, and how often one belongs to another transaction than the one before it.
        self._waiting_bytes = 0
        self._waiting_turns = 0
        # Frames of a lost connection, to be sent again before any waiting message.
        self._returned: deque[SendFrame] = deque()
        # In the order sent; every frame here was written to the current connection.
        self._in_flight: dict[int, SendFrame] = {}
        # By transaction, its frames in flight; never zero.
        self._in_flight_of: dict[Transaction | None, int] = {}

    def bound(self, message_bytes_max: int) -> None:
        """From now on, make batches no larger than this session's broker accepts."""
        self._batched_bytes_max = min(self._wanted_bytes_max, message_bytes_max)

    @property
    def is_sending_again(self) -> bool:
        """Whether frames of an earlier session are due."""
        return any(not frame.is_answered for frame in self._returned)

    @property
    def is_in_doubt(self) -> bool:
        """Whether frames were sent that are not answered."""
        return self.is_sending_again or any(not frame.is_answered for frame in self._in_flight.values())

    @property
    def is_empty(self) -> bool:
        """Whether everything was answered."""
        return not (self._waiting or self._returned or self._in_flight)

    def outstanding(self) -> Iterator[Outgoing]:
        """All messages that are unanswered, in order."""
        for frame in (*self._in_flight.values(), *self._returned):
            yield from frame.messages
        yield from self._waiting

    def begin_behind(self, sequence_id: int) -> None:
        """Continue after the ids of an earlier producer of the name; no effect once an id was given."""
        if self._next_sequence_id == 0:
            self._next_sequence_id = sequence_id + 1

    def append(self, message: Outgoing) -> None:
        """Queue a message behind all others."""
        if self._waiting and self._waiting[-1].txn is not message.txn:
            self._waiting_turns += 1
        self._waiting.append(message)
        self._waiting_bytes += message.size

    def prepend(self, messages: Iterable[Outgoing]) -> None:
        """Queue these before the waiting messages, because they are older."""
        behind = tuple(self._waiting)
        self._forget_waiting()
        for message in (*messages, *behind):
            self.append(message)

    def _pop(self) -> Outgoing:
        message = self._waiting.popleft()
        self._waiting_bytes -= message.size
        if self._waiting and self._waiting[0].txn is not message.txn:
            self._waiting_turns -= 1
        return message

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        self._waiting_turns = 0

    def next_txn(self) -> tuple[Transaction | None] | None:
        """The transaction (or None) of the frame that may leave now, in a tuple; None when no frame may leave."""
        if len(self._in_flight) >= FRAMES_IN_FLIGHT_MAX:
            return None
        while self._returned and self._returned[0].is_answered:
            self._returned.popleft()
        if self._returned:
            return (self._returned[0].txn,)
        # Messages of an aborted transaction have failed meanwhile, and are not sent.
        while self._waiting and self._waiting[0].answer is not None:
            self._pop()
        if not self._waiting:
            return None
        txn = self._waiting[0].txn
        if txn in self._in_flight_of and not self._is_complete():
            return None
        return (txn,)

    def _is_complete(self) -> bool:
        # Whether waiting longer could add nothing to the frame at the head.
        return (
            self._waiting_turns > 0
            or len(self._waiting) >= self._batching.messages_max
            or self._waiting_bytes >= self._batched_bytes_max
        )

    def next_frame(self) -> SendFrame:
        """Take the frame that `next_txn` announced. From now on it is in flight."""
        if self._returned:
            frame = self._returned.popleft()
        else:
            messages = self._take_run()
            frame = SendFrame(self._next_sequence_id, messages, messages[0].txn)
            self._next_sequence_id += len(messages)
        for message in frame.messages:
            message.is_sent = True
        self._in_flight[frame.sequence_id] = frame
        self._in_flight_of[frame.txn] = self._in_flight_of.get(frame.txn, 0) + 1
        return frame

    def _take_run(self) -> list[Outgoing]:
        waiting = self._waiting
        first = self._pop()
        run = [first]
        size = first.size
        while waiting and len(run) < self._batching.messages_max:
            message = waiting[0]
            if message.answer is None:
                size += message.size
                if message.txn is not first.txn or size > self._batched_bytes_max:
                    break
                run.append(message)
            self._pop()
        return run

    def stored(self, sequence_id: int, ledger_id: int, entry_id: int) -> SendFrame | None:
        """The broker has stored this frame, or one of its chunks, here. Take the frame if all of it is stored."""
        frame = self._in_flight.get(sequence_id)
        if frame is None or not frame.is_last_receipt(ledger_id, entry_id):
            return None
        self._stored_upto = max(self._stored_upto, sequence_id + len(frame.messages) - 1)
        return self.answered(sequence_id)

    def answered(self, sequence_id: int) -> SendFrame | None:
        """Take the answered frame out of those in flight, by its first id; None when there is none."""
        frame = self._in_flight.pop(sequence_id, None)
        if frame is not None:
            left = self._in_flight_of[frame.txn] - 1
            if left:
                self._in_flight_of[frame.txn] = left
            else:
                del self._in_flight_of[frame.txn]
        return frame

    def with_message(self, sequence_id: int) -> SendFrame | None:
        """The frame in flight that holds this message. Brokers refuse a batch by its last id, or by its first."""
        for first, frame in self._in_flight.items():
            if first <= sequence_id < first + len(frame.messages):
                return frame
        return None

    def rest(self) -> None:
        """The session is over: its frames are no longer on a connection, and wait until `take_back`."""
        for frame in self._in_flight.values():
            for message in frame.messages:
                message.take_back()

    def take_back(self, *, remembered_upto: int | None = None) -> list[SendFrame]:
        """After a session: queue its frames again, and return those that may or may not be stored.

        Args:
            remembered_upto: after the broker closed the producer and opened it again: the last id that it names then.
                None after a lost connection.
        """
        end = End.LOST if remembered_upto is None else End.CLOSED
        is_remembered = remembers(self._stored_upto, -1 if remembered_upto is None else remembered_upto)
        again: list[SendFrame] = []
        in_doubt: list[SendFrame] = []
        for frame in self._in_flight.values():
            its_fate = fate(end, in_transaction=frame.txn is not None, is_remembered=is_remembered)
            (in_doubt if its_fate is Fate.UNKNOWN else again).append(frame)
        self._returned.extendleft(reversed(again))
        self._in_flight.clear()
        self._in_flight_of.clear()
        for frame in again:
            for message in frame.messages:
                message.take_back()
        return in_doubt

    def take_all(self) -> list[Outgoing]:
        """Take everything unanswered, in order. The outbox is empty then."""
        messages = [message for message in self.outstanding() if message.answer is None]
        for message in messages:
            message.take_back()
        self._forget_waiting()
        self._returned.clear()
        self._in_flight.clear()
        self._in_flight_of.clear()
        return messages
