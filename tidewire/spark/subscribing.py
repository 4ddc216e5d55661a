"""A query's place as a broker subscription, so that other tools see its lag, and segments stay until it has read them.

The subscription is a cursor on each segment. Spark's checkpoint is what the query goes by; these follow it, each time
that a micro-batch is processed. The query's planner holds the
subscription's consumers, which give no permits, so that no message is sent on their account; and holding them keeps a
second query of the same name out.
"""

from collections.abc import Mapping
from functools import partial

from tidewire.spark.brokers import Brokers, Connect
from tidewire.spark.connection import Connection
from tidewire.spark.errors import Refused
from tidewire.spark.layouts import Part, is_gone
from tidewire.spark.measuring import ask_end
from tidewire.spark.offsets import Places, waiting
from tidewire.spark.options import ReadOptions
from tidewire.spark.positions import EARLIEST, Position
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id


class QuerySubscription:
    """See the module's docstring."""

    def __init__(self, name: str, options: ReadOptions, connect: Connect | None = None) -> None:
        """Nothing is opened yet."""
        self._name = name
        self._options = options
        self._connect = connect
        self._brokers = Brokers(options, connect)
        self._consumers: dict[str, tuple[Connection, int]] = {}
        self._acknowledged: dict[str, Position] = {}
        self._done: set[str] = set()
        self._numbers = 0

    def close(self) -> None:
        """Leave the subscription where it is."""
        self._brokers.__exit__(None, None, None)

    def reset(self) -> None:
        """Forget the connections; others are made when they are needed."""
        self.close()
        self._brokers = Brokers(self._options, self._connect)
        self._consumers.clear()

    def move(self, topic: str, parts: Mapping[str, Part], places: Places) -> None:
        """Move the cursors of a topic's segments to these places.

        Segments that are in none of them, and whose turn is not to come, were read.

        Raises:
            SourceError: a broker refuses it, or cannot be asked.
        """
        self._forget_closed()
        by_number = {part.number: part for part in parts.values()}
        to_come = waiting([parts[name].number for name in places if name in parts], by_number)
        for name, part in parts.items():
            place = places.get(name)
            if place is not None:
                self._acknowledge(part, place.position)
            elif part.number not in to_come and part.wire_name not in self._done:
                try:
                    self._finish(part)
                except Refused as refused:
                    # A segment that everybody has read may go at any time.
                    if not is_gone(refused):
                        raise
                self._done.add(part.wire_name)

    def _finish(self, part: Part) -> None:
        owner, consumer_id = self._consumer(part)
        self._acknowledge(part, ask_end(owner, consumer_id, None).last)
        # Nothing is left to be sent, but entries of aborted transactions to be passed over; that takes permits.
        owner.send(commands.flow(consumer_id, 1))

    def _forget_closed(self) -> None:
        """A broker closes the consumers of a segment that it no longer serves; they are opened anew, wherever it is."""
        for owner in {id(owner): owner for owner, _ in self._consumers.values()}.values():
            for frame in owner.arrived():
                if frame.command.type == pb.BaseCommand.CLOSE_CONSUMER:
                    gone = (owner, frame.command.close_consumer.consumer_id)
                    self._consumers = {name: known for name, known in self._consumers.items() if known != gone}

    def _acknowledge(self, part: Part, position: Position) -> None:
        owner, consumer_id = self._consumer(part)
        if position > self._acknowledged.get(part.wire_name, EARLIEST):
            owner.request(
                lambda request_id: commands.ack(
                    consumer_id, [message_id(*position)], cumulative=True, request_id=request_id
                ),
                pb.CommandAckResponse,
            )
        self._acknowledged[part.wire_name] = position

    def _consumer(self, part: Part) -> tuple[Connection, int]:
        known = self._consumers.get(part.wire_name)
        if known is None:
            owner = self._brokers.owner_of(part.wire_name)
            self._numbers += 1
            subscribe = partial(
                commands.subscribe,
                part.wire_name,
                self._name,
                self._numbers,
                name=f"spark-{self._name}",
                initial_position=pb.CommandSubscribe.Earliest,
            )
            owner.request(lambda request_id: subscribe(request_id), pb.CommandSuccess)
            known = self._consumers[part.wire_name] = (owner, self._numbers)
        return known
