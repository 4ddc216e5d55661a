"""A segment whose subscription is acknowledged in and outside transactions, and a model of the allowed results.

    async with rooms(metadata, files) as broker:
        stage = await AckedSegment.prepare(broker, History())
        ...
        await stage.acknowledge(0, [EntryAck(stage.positions[1])])      # in transaction 0
        await stage.end(0, EndAction.COMMIT)
        await stage.check()                                             # all transactions have ended

The history holds what the clients know, so it outlives a broker. After a crash, `reopen` continues with the next one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from trio.testing import wait_all_tasks_blocked

from broker.names import TopicName
from broker.topic import Topic
from dispatch.consumer import Consumer
from dispatch.errors import AcknowledgementRefused, ConsumerBusy, SubscriptionClosed
from dispatch.subscription import Acknowledgement, Subscription
from dispatch.subscription_types import SubscriptionType
from storage.cursor import CursorError
from storage.entry import EntryFormat, TxnId
from storage.metadata.store import starting_with
from storage.position import EARLIEST, Position
from storage.ranges import EntryAck, bits_from_words, words_from_bits
from tests.support.metadata import keys_left
from tests.support.outlet import RecordingOutlet, recording_consumer
from tests.support.rooms import TOPIC, Rooms
from tests.support.wire import message
from txn.errors import InvalidTxnStatus, TransactionConflict, TxnError
from txn.ops import KEY_PREFIX as OPS
from txn.pending_transaction import CommandId
from txn.states import EndAction, TxnState

SIZES = [1, 1, 3, 1, 3, 1]
"""Messages in each entry."""

TRANSACTIONS = 3

FOREVER = 1 << 30

Message = tuple[Position, int]
"""An entry's position and the number of a message in it."""


@dataclass
class Attempt:
    """One acknowledgement that a client sent."""

    txn: TxnId | None
    said: set[Message]
    began: int
    """When it was sent, in moments of the history."""
    is_answered: bool | None = None
    """Whether it was accepted; None if the client got no answer."""
    ended: int = FOREVER
    """When it was answered."""
    acks: tuple[EntryAck, ...] = ()
    cumulative: bool = False
    request: int = 0
    """The number of its command. A repeat has the number of the first one."""


@dataclass
class Seek:
    """A seek: it moved the subscription behind some messages, and discarded its acknowledgements."""

    behind: set[Message]
    began: int
    ended: int = FOREVER
    """When it was answered; FOREVER if its client does not know whether it happened."""


@dataclass
class History:
    """What the clients know, from all brokers so far."""

    positions: list[Position] = field(default_factory=list)
    txns: list[TxnId] = field(default_factory=list)
    attempts: list["Attempt"] = field(default_factory=list)
    asked: dict[TxnId, set[TxnState]] = field(default_factory=dict)
    """Outcomes that were asked for."""
    decided: dict[TxnId, TxnState] = field(default_factory=dict)
    """Outcomes that were answered."""
    seek: Seek | None = None
    conflicts: int = 0
    moments: int = 0

    def moment(self) -> int:
        """Return a moment later than all earlier ones."""
        self.moments += 1
        return self.moments

    def messages(self, ack: EntryAck, *, cumulative: bool = False) -> set[Message]:
        """Return the messages that an acknowledgement covers."""
        said = {
            (ack.position, number)
            for number in range(SIZES[self.positions.index(ack.position)])
            if not ack.remaining >> number & 1
        }
        if cumulative:
            said |= {
                (position, number)
                for position, size in zip(self.positions, SIZES, strict=True)
                if position < ack.position
                for number in range(size)
            }
        return said

    def check_taken(self, taken: Attempt) -> None:
        """E5: an individual acknowledgement was accepted in a transaction, so no other one has any of its messages."""
        if taken.txn is None or taken.cumulative or self.seek is not None:
            return
        # A repeat has the messages of its first command. Another acknowledgement may have come between the two.
        began = min(one.began for one in self.attempts if one.request == taken.request and one.is_answered is not False)
        for other in self.attempts:
            is_before = other.is_answered is True and other.ended < began
            may_be_aborted = other.txn is not None and TxnState.ABORTED in self.asked.get(other.txn, ())
            if is_before and not may_be_aborted and other.request != taken.request:
                assert not other.said & taken.said, f"{taken} was taken, though {other} was"

    def check_refused(self, refused: Attempt) -> None:
        """E5: a refused command must not be the repeat of one that was accepted in an open transaction."""
        if refused.txn is None or self.seek is not None or refused.txn in self.asked:
            return
        for other in self.attempts:
            is_first = other is not refused and other.request == refused.request
            assert not (is_first and other.is_answered), f"{refused} was refused, though {other} was taken"

    @property
    def all_messages(self) -> set[Message]:
        """Return all messages."""
        return {(at, number) for at, size in zip(self.positions, SIZES, strict=True) for number in range(size)}


class AckedSegment:
    """One broker's view of the segment."""

    def __init__(self, broker: Rooms, name: TopicName, topic: Topic, history: History) -> None:
        self.broker = broker
        self.name = name
        self.topic = topic
        self.history = history
        self.subscription: Subscription = topic.subscriptions["s"]
        self.consumers: list[tuple[Consumer, RecordingOutlet]] = []

    @classmethod
    async def prepare(cls, broker: Rooms, history: History) -> "AckedSegment":
        """Create a topic with its messages, its subscription and open transactions."""
        await broker.controller.create_topic(TOPIC, 1, {})
        name = await broker.segment(TOPIC, 0)
        topic = await broker.topics.get(name)
        await topic.subscribe("s", EARLIEST)
        for size in SIZES:
            history.positions.append(
                await topic.publish(message(), message_count=size, txn=None, entry_format=EntryFormat.PULSAR)
            )
        await topic.ledger.confirmed.wait_for(history.positions[-1])
        for _ in range(TRANSACTIONS):
            history.txns.append(await broker.coordinator.new_transaction(0, 60_000))
        return cls(broker, name, topic, history)

    @classmethod
    async def reopen(cls, broker: Rooms, history: History) -> "AckedSegment":
        """Open the same segment on the next broker."""
        name = await broker.segment(TOPIC, 0)
        return cls(broker, name, await broker.topics.get(name), history)

    async def acknowledge(self, which: int | None, acks: Sequence[EntryAck], *, cumulative: bool = False) -> None:
        """Acknowledge in a transaction or outside. A refusal is recorded."""
        txn = None if which is None else self.history.txns[which]
        await self._acknowledge(txn, tuple(acks), cumulative=cumulative, request=len(self.history.attempts))

    async def repeat(self, number: int) -> None:
        """Resend one of the transactional commands, as its client does after it lost its connection."""
        sent = [attempt for attempt in self.history.attempts if attempt.txn is not None]
        if sent:
            first = sent[number % len(sent)]
            await self._acknowledge(first.txn, first.acks, cumulative=first.cumulative, request=first.request)

    async def _acknowledge(
        self, txn: TxnId | None, acks: tuple[EntryAck, ...], *, cumulative: bool, request: int
    ) -> None:
        history = self.history
        said = set().union(*(history.messages(ack, cumulative=cumulative) for ack in acks))
        given = [Acknowledgement(at, words_from_bits(remaining), size) for at, remaining, size in acks]
        attempt = Attempt(txn, said, history.moment(), acks=acks, cumulative=cumulative, request=request)
        history.attempts.append(attempt)
        identity = CommandId("c", request, object())
        try:
            if txn is None:
                self.subscription.acknowledge(given, cumulative=cumulative)
                await self.subscription.synced()
            else:
                await self.topic.acknowledge_in_transaction(
                    self.subscription, txn, acks, cumulative=cumulative, identity=identity
                )
        except (TxnError, AcknowledgementRefused, SubscriptionClosed) as refused:
            history.conflicts += isinstance(refused, TransactionConflict)
            # An op record may exist although the metadata store did not answer.
            attempt.is_answered = False if refused.definite else None
            if isinstance(refused, TransactionConflict):
                history.check_refused(attempt)
        except CursorError:
            # The topic is being unloaded, so it is unknown whether it was accepted.
            return
        else:
            attempt.is_answered = True
            history.check_taken(attempt)
        attempt.ended = history.moment()

    async def seek(self, entry: int) -> None:
        """Move the subscription to behind an entry."""
        history = self.history
        behind = history.messages(EntryAck(history.positions[entry]), cumulative=True)
        seek = history.seek = Seek(behind, history.moment())
        try:
            await self.subscription.seek(history.positions[entry])
        except CursorError:
            # The topic is being unloaded, so it is unknown whether it happened.
            return
        seek.ended = history.moment()

    async def end(self, which: int, action: EndAction) -> None:
        """Request the end of a transaction."""
        txn = self.history.txns[which]
        state = TxnState.COMMITTED if action is EndAction.COMMIT else TxnState.ABORTED
        self.history.asked.setdefault(txn, set()).add(state)
        try:
            await self.broker.coordinator.end(txn, action)
        except InvalidTxnStatus:
            return
        self.history.decided[txn] = state

    def join(self, kind: SubscriptionType, permits: int = 100) -> None:
        """Add a consumer, if the subscription accepts it."""
        consumer, outlet = recording_consumer()
        try:
            self.subscription.add_consumer(consumer, kind)
        except (ConsumerBusy, SubscriptionClosed):
            return
        self.subscription.flow(consumer, permits)
        self.consumers.append((consumer, outlet))

    def leave(self) -> None:
        """Remove the first consumer."""
        if self.consumers:
            self.subscription.remove_consumer(self.consumers.pop(0)[0])

    async def move(self) -> None:
        """Unload the segment, and take it over again."""
        self.consumers.clear()
        await self.broker.topics.unload(self.name)
        self.topic = await self.broker.topics.get(self.name)
        self.subscription = self.topic.subscriptions["s"]

    async def op_records(self) -> list[str]:
        """The keys of all op records."""
        return [record.key for record in await self.broker.metadata.scan(*starting_with(OPS))]

    def acknowledged_now(self) -> set[Message]:
        """Return the messages that the cursor has acknowledged."""
        cursor = self.subscription.cursor
        found = set()
        for position, number in self.history.all_messages:
            bits = cursor.remaining_bits(position)
            if cursor.is_acknowledged(position) or (bits is not None and not bits >> number & 1):
                found.add((position, number))
        return found

    async def check(self) -> None:
        """Check, after all transactions ended, that cursor and outcomes agree, and that the rest is sent."""
        assert await keys_left(self.broker.metadata, OPS) == []
        history = self.history
        committed = {txn for txn, state in history.decided.items() if state is TxnState.COMMITTED}
        assert set(history.decided) == set(history.txns)
        applied = [attempt for attempt in history.attempts if attempt.txn is None or attempt.txn in committed]
        now = self.acknowledged_now()
        assert any(must <= now <= may for must, may in self._outcomes(applied)), "lost, or never acknowledged"
        assert self.broker.headers.transactions_joined == 0
        assert self.broker.services.counters.op_records_outstanding == 0
        assert await self.sent_now() == history.all_messages - now

    async def check_open(self) -> None:
        """Check that messages acknowledged in open transactions are sent to nobody, and all others are."""
        await wait_all_tasks_blocked()
        history = self.history
        pending = [
            attempt
            for attempt in history.attempts
            if attempt.txn is not None and attempt.txn not in history.decided and attempt.is_answered
        ]
        free = history.all_messages - self.acknowledged_now()
        sent = await self.sent_now()
        assert any(free - may <= sent <= free - must for must, may in self._outcomes(pending, of_open=True))

    def _outcomes(
        self, attempts: Sequence[Attempt], *, of_open: bool = False
    ) -> Iterator[tuple[set[Message], set[Message]]]:
        """Yield what these attempts must have changed and may have changed, with the seek and without it."""
        seek = self.history.seek
        if seek is None or seek.ended == FOREVER:
            yield (
                set().union(*(attempt.said for attempt in attempts if attempt.is_answered)),
                set().union(*(attempt.said for attempt in attempts if attempt.is_answered is not False)),
            )
        if seek is not None:
            behind = set() if of_open else seek.behind
            after = (attempt.said for attempt in attempts if attempt.began > seek.ended and attempt.is_answered)
            since = (
                attempt.said for attempt in attempts if attempt.ended > seek.began and attempt.is_answered is not False
            )
            yield behind.union(*after), behind.union(*since)

    async def sent_now(self) -> set[Message]:
        """Return what a new consumer gets after all others have left."""
        while self.consumers:
            self.leave()
        self.join(SubscriptionType.EXCLUSIVE)
        await wait_all_tasks_blocked()
        ((_, outlet),) = self.consumers
        self.leave()
        return {
            (delivery.entry.position, number)
            for delivery in outlet.deliveries
            for number in range(delivery.entry.message_count)
            if delivery.ack_bits is None or bits_from_words(delivery.ack_bits) >> number & 1
        }
