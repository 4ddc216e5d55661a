"""A subscription that one process holds: where it is on each segment, and moving it, also in transactions.

It is the whole memory of a job that keeps none itself (`transforming.py`), and what others see of a query's place
(`subscribing.py`). Holding is by consumers, one a segment, who are alone on it and give no permits: nothing is sent on
their account, and whoever else wants to hold the same subscription is refused. What a broker answers has everything
that was decided before it was asked, so whoever opens the consumers first and then asks knows the truth, and nobody
else can move it.
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
"""How a broker refuses a subscription that somebody else holds, or that it cannot serve now."""
SENT_AWAY_MAX: Final = 20
"""How often in a row a broker may close a consumer that has just been opened."""

_Answer = TypeVar("_Answer")


class HeldSubscription:
    """See the module's docstring. After an error of a connection, `reset` has it begin anew with other ones."""

    def __init__(self, name: str, options: Contact, connect: Connect | None = None) -> None:
        """Nothing is opened yet.

        Args:
            name: the subscription's.
            options: where brokers are.
            connect: makes connections, over TCP unless it is given.
        """
        self._name = name
        self._options = options
        self._connect = connect
        self._brokers = Brokers(options, connect)
        self._consumers: dict[str, tuple[BlockingConnection, int]] = {}
        self._passing_over: set[int] = set()
        """Ids of consumers that let the broker go over the end of their part."""
        self._numbers = count(1)

    def close(self) -> None:
        """Let go of it; it stays where it is."""
        self._brokers.close()

    def reset(self) -> None:
        """Forget the connections; others are made when they are needed."""
        self.close()
        self._brokers = Brokers(self._options, self._connect)
        self._consumers.clear()

    @property
    def connections(self) -> Collection[BlockingConnection]:
        """Those on which brokers may say that it is not held any more. Take what has arrived before."""
        return tuple(self._brokers.connected())

    def arrived(self) -> bool:
        """Take what brokers have said; whether something is not held any more. Does not wait.

        Raises:
            ConnectionLost, ProtocolViolation: a connection ended.
        """
        held = len(self._consumers)
        for connection in self.connections:
            for frame in connection.arrived():
                self._hear(connection, frame)
        return len(self._consumers) < held

    def hold(self, parts: Collection[Segment]) -> bool:
        """Open what is not open; whether there was anything. What was open of other parts is forgotten.

        Raises:
            Refused: somebody else holds it (ConsumerBusy), or another reason.
            TidewireError: nobody could be asked.
        """
        self.arrived()
        wanted = {part.wire_name for part in parts}
        for name in self._consumers.keys() - wanted:
            # Its segment was removed, so the broker has closed it, or will.
            del self._consumers[name]
        missing = [part for part in parts if part.wire_name not in self._consumers]
        for part in missing:
            self.open(part)
        return bool(missing)

    def is_open(self, part: Segment) -> bool:
        """Whether the part is held, so that nobody else moves the subscription there."""
        return part.wire_name in self._consumers

    def open(self, part: Segment) -> tuple[BlockingConnection, int]:
        """The consumer of one part, which is opened if it is not open: its connection, and its id there.

        Raises:
            TidewireError: as `hold`.
        """
        return self._consumers.get(part.wire_name) or self._open(part)

    def end(self, part: Segment) -> EntryPosition:
        """The last entry of a part that is visible.

        Raises:
            TidewireError: nobody could be asked.
        """
        return self._asked(part, lambda owner, consumer_id: ask_end(owner, consumer_id, None).last)

    def position(self, part: Segment) -> EntryPosition:
        """Up to where all of a part is acknowledged, by every transaction that was committed before the call.

        Raises:
            TidewireError: nobody could be asked.
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
        """Let the subscription be there, when the transaction is committed if there is one; durable on return.

        Raises:
            ConnectionLost: in a transaction, if the part is not held any more. Somebody may have moved the
                subscription, of which whoever opens the transaction has to know.
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
        """Whether `pass_over` was called for a part that has been held since."""
        opened = self._consumers.get(part.wire_name)
        return opened is not None and opened[1] in self._passing_over

    def pass_over(self, part: Segment) -> None:
        """Of a part that was read to its end: let the broker go over what is left, of transactions that were aborted.

        Raises:
            TidewireError: nobody could be told.
        """
        owner, consumer_id = self.open(part)
        owner.send(commands.flow(consumer_id, 1))
        self._passing_over.add(consumer_id)

    def _asked(
        self, part: Segment, ask: Callable[[BlockingConnection, int], _Answer], *, reopens: bool = True
    ) -> _Answer:
        """An answer to a consumer that was open before and after it was asked."""
        for _ in range(SENT_AWAY_MAX):
            if not reopens and part.wire_name not in self._consumers:
                raise ConnectionLost(f"subscription {self._name} is not held on {part.wire_name} any more")
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
                name=f"spark-{self._name}",
                initial_position=pb.CommandSubscribe.Earliest,
            ),
            pb.CommandSuccess,
        )
        opened = self._consumers[part.wire_name] = (owner, consumer_id)
        return opened

    def _hear(self, owner: BlockingConnection, frame: Frame) -> None:
        """A broker closes the consumers of a segment that it serves no more, or whose subscription somebody moved."""
        if frame.command.type == pb.BaseCommand.CLOSE_CONSUMER:
            gone = (owner, frame.command.close_consumer.consumer_id)
            self._consumers = {name: known for name, known in self._consumers.items() if known != gone}
