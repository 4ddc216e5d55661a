"""A subscription that one process holds: reading and moving its position on each segment, also in transactions.

It holds all progress of a job that keeps none itself (`transforming.py`), and shows other tools the progress of a query
(`subscribing.py`). The process holds it by one exclusive consumer for each segment, which gives no permits. So brokers
send these consumers no messages, and refuse everybody else who wants the subscription. A broker's answer covers all
transactions that were decided before the request. So open the consumers first and ask then: the answer is current, and
nobody else can move the subscription.
"""

from collections.abc import Callable, Collection
from functools import partial
from itertools import count
from typing import Final, TypeVar

from tidewire.protocol.coordination import TransactionId
from tidewire.protocol.errors import ConnectionLost, ProtocolViolation
from tidewire.protocol.layout import Segment
from tidewire.protocol.positions import EntryPosition
from tidewire.protocol.refusals import Refused
from tidewire.spark.brokers import Brokers, Connect, Contact
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.measuring import ask_end
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position

BUSY: Final = (pb.ServiceNotReady, pb.ConsumerBusy)
"""The codes by which a broker refuses a subscription that is held by others, or that it cannot serve now."""
SENT_AWAY_MAX: Final = 20
"""How often in a row a broker may close a consumer that was just opened."""

_Answer = TypeVar("_Answer")


class HeldSubscription:
    """See the module's docstring. After an error of a connection, call `reset` and go on with new connections."""

    def __init__(self, name: str, options: Contact, connect: Connect | None = None) -> None:
        """Open nothing yet.

        Args:
            name: the subscription's name.
            options: where brokers are.
            connect: makes connections; by default over TCP.
        """
        self._name = name
        self._options = options
        self._connect = connect
        self._brokers = Brokers(options, connect)
        self._consumers: dict[str, tuple[BlockingConnection, int]] = {}
        self._passing_over: set[int] = set()
        """Ids of consumers that let the broker skip aborted entries at the end of their part."""
        self._numbers = count(1)

    def close(self) -> None:
        """Release the subscription. Its position stays."""
        self._brokers.close()

    def reset(self) -> None:
        """Forget the connections; new ones are made when needed."""
        self.close()
        self._brokers = Brokers(self._options, self._connect)
        self._consumers.clear()

    @property
    def connections(self) -> Collection[BlockingConnection]:
        """The connections on which brokers may close a consumer. Call `arrived` before you wait on them."""
        return tuple(self._brokers.connected())

    def arrived(self) -> bool:
        """Process what brokers have sent. Returns whether a part is no longer held. Does not wait.

        Raises:
            ConnectionLost, ProtocolViolation: a connection ended.
        """
        held = len(self._consumers)
        for connection in self.connections:
            for frame in connection.arrived():
                self._hear(connection, frame)
        return len(self._consumers) < held

    def hold(self, parts: Collection[Segment]) -> bool:
        """Hold these parts, and forget the others. Returns whether any had to be opened.

        Raises:
            Refused: another process holds the subscription (ConsumerBusy), or another reason.
            TidewireError: no broker could be asked.
        """
        self.arrived()
        wanted = {part.wire_name for part in parts}
        for name in self._consumers.keys() - wanted:
            # Its segment was removed, so the broker has closed the consumer or will.
            del self._consumers[name]
        missing = [part for part in parts if part.wire_name not in self._consumers]
        for part in missing:
            self.open(part)
        return bool(missing)

    def is_open(self, part: Segment) -> bool:
        """Whether the part is held, so that nobody else moves the subscription there."""
        return part.wire_name in self._consumers

    def open(self, part: Segment) -> tuple[BlockingConnection, int]:
        """The connection and id of a part's consumer, which is opened if it is not open.

        Raises:
            TidewireError: as `hold`.
        """
        return self._consumers.get(part.wire_name) or self._open(part)

    def end(self, part: Segment) -> EntryPosition:
        """The last visible entry of a part.

        Raises:
            TidewireError: no broker could be asked.
        """
        return self._asked(part, lambda owner, consumer_id: ask_end(owner, consumer_id, None).last)

    def position(self, part: Segment) -> EntryPosition:
        """Up to where all of a part is acknowledged, including every transaction committed before the call.

        Raises:
            TidewireError: no broker could be asked.
        """

        def ask(owner: BlockingConnection, consumer_id: int) -> EntryPosition:
            answer = owner.request(
                partial(commands.get_last_message_id, consumer_id), pb.CommandGetLastMessageIdResponse
            )
            if not answer.HasField("consumer_mark_delete_position"):
                raise ProtocolViolation(
                    f"the broker of {part.wire_name} does not report the position of subscription {self._name}"
                )
            return EntryPosition(*position(answer.consumer_mark_delete_position))

        return self._asked(part, ask)

    def acknowledge(self, part: Segment, upto: EntryPosition, transaction: TransactionId | None = None) -> None:
        """Move the subscription there; in a transaction, when that commits. Durable on return.

        Raises:
            ConnectionLost: in a transaction: the part is no longer held. Another process may have moved the
                subscription, so the caller has to start over.
            TidewireError: it was refused, or not answered.
        """

        def ask(owner: BlockingConnection, consumer_id: int) -> None:
            owner.request(
                lambda request_id: commands.ack(
                    consumer_id, [message_id(*upto)], cumulative=True, txn=transaction, request_id=request_id
                ),
                pb.CommandAckResponse,
            )

        self._asked(part, ask, reopens=transaction is None)

    def is_passing_over(self, part: Segment) -> bool:
        """Whether `pass_over` was called for a part that was held ever since."""
        opened = self._consumers.get(part.wire_name)
        return opened is not None and opened[1] in self._passing_over

    def pass_over(self, part: Segment) -> None:
        """Let the broker skip the rest of a part that was read to its end: entries of aborted transactions.

        Raises:
            TidewireError: no broker could be told.
        """
        owner, consumer_id = self.open(part)
        owner.send(commands.flow(consumer_id, 1))
        self._passing_over.add(consumer_id)

    def _asked(
        self, part: Segment, ask: Callable[[BlockingConnection, int], _Answer], *, reopens: bool = True
    ) -> _Answer:
        """An answer to a consumer that was open before and after the request."""
        for _ in range(SENT_AWAY_MAX):
            if not reopens and part.wire_name not in self._consumers:
                raise ConnectionLost(f"subscription {self._name} is no longer held on {part.wire_name}")
            opened = self.open(part)
            try:
                answer = ask(*opened)
            except Refused:
                if self._consumers.get(part.wire_name) == opened:
                    raise
                continue
            if self._consumers.get(part.wire_name) == opened:
                return answer
        raise ProtocolViolation(f"the broker of {part.wire_name} closes every consumer of subscription {self._name}")

    def _open(self, part: Segment) -> tuple[BlockingConnection, int]:
        owner = self._brokers.owner_of(part.wire_name)
        owner.unasked = partial(self._hear, owner)
        consumer_id = next(self._numbers)
        owner.request(
            lambda request_id: commands.subscribe(
                part.wire_name,
                self._name,
                consumer_id,
                request_id,
                name=commands.spark_consumer_name(self._name),
                initial_position=pb.CommandSubscribe.Earliest,
            ),
            pb.CommandSuccess,
        )
        opened = self._consumers[part.wire_name] = (owner, consumer_id)
        return opened

    def _hear(self, owner: BlockingConnection, frame: Frame) -> None:
        """Brokers close consumers of segments that they no longer serve, or whose subscription was moved."""
        if frame.command.type == pb.BaseCommand.CLOSE_CONSUMER:
            gone = (owner, frame.command.close_consumer.consumer_id)
            self._consumers = {name: known for name, known in self._consumers.items() if known != gone}
