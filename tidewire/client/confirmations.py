"""Acknowledgements that somebody waits for: told on the session of this moment, and answered by the broker.

An acknowledgement without an answer is told again on the next session; one with an answer belongs to its session, since
only whoever waits for it knows what to do when that ends.
"""

from functools import partial

from tidewire.client.acknowledgements import AckCommand, Acknowledgements
from tidewire.client.connection import Connection
from tidewire.protocol.errors import ConnectionLost
from tidewire.protocol.positions import Position
from tidewire.protocol.refusals import Refused
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


class Confirmation:
    """Acknowledgements taken out to be told now, on the session of this moment, with an answer."""

    __slots__ = ("_acknowledgements", "_connection", "_consumer_id", "_place", "_told")

    def __init__(
        self,
        connection: Connection,
        consumer_id: int,
        told: list[AckCommand],
        acknowledgements: Acknowledgements | None,
        place: Position,
    ) -> None:
        """What is `told`; once answered, `acknowledgements` learn that all up to `place` is confirmed."""
        self._connection = connection
        self._consumer_id = consumer_id
        self._told = told
        self._acknowledgements = acknowledgements
        self._place = place

    async def wait(self) -> None:
        """Tell, and return when the broker has taken it in.

        Raises:
            ConnectionLost: the session ended first; the messages may come again.
            Refused: the broker does not accept it.
        """
        for command in self._told:
            await acknowledge_answered(self._connection, self._consumer_id, command)
        if self._acknowledgements is not None and self._told:
            self._acknowledgements.confirmed(self._place)


async def acknowledge_answered(
    connection: Connection, consumer_id: int, command: AckCommand, txn: tuple[int, int] | None = None
) -> None:
    """Tell, perhaps as part of a transaction, and return when the broker has taken it in.

    Raises:
        ConnectionLost: the session ended first.
        Refused: the broker does not accept it.
    """
    try:
        await connection.request(partial(_ack, consumer_id, command, txn), pb.CommandAckResponse)
    except Refused as refused:
        if refused.code == pb.ServerError.ConsumerNotFound:
            raise ConnectionLost(f"the session ended before the acknowledgement came: {refused}") from refused
        raise


def _ack(consumer_id: int, command: AckCommand, txn: tuple[int, int] | None, request_id: int) -> pb.BaseCommand:
    return commands.ack(consumer_id, command.message_ids, cumulative=command.cumulative, txn=txn, request_id=request_id)
