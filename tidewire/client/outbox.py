"""What one segment's producer has to send, in order, and how it falls into frames. Pure.

Batches form by themselves: a message that finds nothing of its transaction (or, outside of any, of no transaction) on
the way to the segment leaves at once; those that come while one is on the way leave together, when it is answered or
when they fill a frame, whatever is first. So a lone message is not delayed, a stream of them costs a frame per
thousand, and no timer has to be guessed.

Order is the promise: frames leave in the order of their messages, a frame holds consecutive messages only, and what was
taken back after a lost connection leaves again before anything else, in the same frames under the same sequence ids.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from tidewire.client.sending import Batching, Chunking, Outgoing, SendFrame
from tidewire.client.transactions import Transaction
from tidewire.protocol.unanswered import End, Fate, fate, remembers

FRAMES_IN_FLIGHT_MAX: Final = 128
"""Frames of one segment that may be unanswered at once; what they hold is bounded by the producer's room as well."""


class Outbox:
    """One segment's messages from their coming to their answer."""

    def __init__(self, batching: Batching, chunking: Chunking | None = None) -> None:
        """Nothing to send."""
        self._batching = batching
        # What may have to be divided travels alone.
        self._wanted_bytes_max = batching.bytes_max
        if chunking is not None:
            self._wanted_bytes_max = min(batching.bytes_max, chunking.chunk_size_max)
        # What fits into a batch at the broker of this session.
        self._batched_bytes_max = self._wanted_bytes_max
        self._next_sequence_id = 0
        self._stored_upto = -1
        """The highest id that the broker has said to have."""
        self._waiting: deque[Outgoing] = deque()
        # Of what waits: its size, and how many messages belong to another transaction than the one before them.
        self._waiting_bytes = 0
        self._waiting_turns = 0
        # Frames of a lost connection, to be sent again before anything that waits.
        self._returned: deque[SendFrame] = deque()
        # In the order sent; every frame here was written to the current connection.
        self._in_flight: dict[int, SendFrame] = {}
        # How many frames of each transaction are in flight; never zero.
        self._in_flight_of: dict[Transaction | None, int] = {}

    def bound(self, message_bytes_max: int) -> None:
        """From now on, batches are no larger than the broker of this session takes."""
        self._batched_bytes_max = min(self._wanted_bytes_max, message_bytes_max)

    @property
    def frames_in_flight(self) -> int:
        """Frames sent and unanswered."""
        return len(self._in_flight)

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
        """Count from the id behind this one: an earlier producer of the name used those; no effect once counting."""
        if self._next_sequence_id == 0:
            self._next_sequence_id = sequence_id + 1

    def append(self, message: Outgoing) -> None:
        """One more, behind all others."""
        if self._waiting and self._waiting[-1].txn is not message.txn:
            self._waiting_turns += 1
        self._waiting.append(message)
        self._waiting_bytes += message.size

    def prepend(self, messages: Iterable[Outgoing]) -> None:
        """Put these before what waits: they were there earlier."""
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
        """The transaction (or none) of the frame that may leave now, as a tuple of it; None when no frame may."""
        if len(self._in_flight) >= FRAMES_IN_FLIGHT_MAX:
            return None
        while self._returned and self._returned[0].is_answered:
            self._returned.popleft()
        if self._returned:
            return (self._returned[0].txn,)
        # What failed meanwhile (its transaction was aborted) is not sent any more.
        while self._waiting and self._waiting[0].answer is not None:
            self._pop()
        if not self._waiting:
            return None
        txn = self._waiting[0].txn
        if txn in self._in_flight_of and not self._is_complete():
            return None
        return (txn,)

    def _is_complete(self) -> bool:
        # Whether waiting longer could not add to the frame at the head.
        return (
            self._waiting_turns > 0
            or len(self._waiting) >= self._batching.messages_max
            or self._waiting_bytes >= self._batched_bytes_max
        )

    def next_frame(self) -> SendFrame:
        """Take the frame that `next_txn` announced; from now on it is in flight."""
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
        """The broker has this frame, or one chunk of it, at this place. Take it if that is all of it."""
        frame = self._in_flight.get(sequence_id)
        if frame is None or not frame.is_last_receipt(ledger_id, entry_id):
            return None
        self._stored_upto = max(self._stored_upto, sequence_id + len(frame.messages) - 1)
        return self.answered(sequence_id)

    def answered(self, sequence_id: int) -> SendFrame | None:
        """Take the frame in flight that the broker answered, by its first id; None when there is none."""
        frame = self._in_flight.pop(sequence_id, None)
        if frame is not None:
            left = self._in_flight_of[frame.txn] - 1
            if left:
                self._in_flight_of[frame.txn] = left
            else:
                del self._in_flight_of[frame.txn]
        return frame

    def with_message(self, sequence_id: int) -> SendFrame | None:
        """The frame in flight that holds this message: brokers refuse a batch by its last id, or by its first."""
        for first, frame in self._in_flight.items():
            if first <= sequence_id < first + len(frame.messages):
                return frame
        return None

    def rest(self) -> None:
        """The session is over: what was in flight is on its way no more, and waits until it is taken back."""
        for frame in self._in_flight.values():
            for message in frame.messages:
                message.is_sent = False

    def take_back(self, *, remembered_upto: int | None = None) -> list[SendFrame]:
        """After a session: let what was in flight leave again, and return the frames that may be stored or not.

        Args:
            remembered_upto: after the broker has closed the producer and opened it again: the last id that it names
                then. None after a lost connection.
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
                message.is_sent = False
        return in_doubt

    def take_all(self) -> list[Outgoing]:
        """Everything unanswered, in order; nothing is left."""
        messages = [message for message in self.outstanding() if message.answer is None]
        for message in messages:
            message.is_sent = False
        self._forget_waiting()
        self._returned.clear()
        self._in_flight.clear()
        self._in_flight_of.clear()
        return messages
