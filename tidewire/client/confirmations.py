"""Acknowledgements that a caller waits for: sent on the current session, and answered by the broker.

A confirmation belongs to its session and fails with it. It is not sent again on the next session: only the caller knows
what to do then.
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
    """Acknowledgements to send on the current session, with an answer from the broker."""

    __slots__ = ("_acknowledgements", "_connection", "_consumer_id", "_place", "_told")

    def __init__(
        self,
        connection: Connection,
        consumer_id: int,
        told: list[AckCommand],
        acknowledgements: Acknowledgements | None,
        place: Position,
    ) -> None:
        """To send `told`. Its answer confirms everything up to `place` in `acknowledgements`, if given."""
        self._connection = connection
        self._consumer_id = consumer_id
        self._told = told
        self._acknowledgements = acknowledgements
        self._place = place

    async def wait(self) -> None:
        """Send them, and return when the broker has answered.

        Raises:
            ConnectionLost: the session ended first; the messages may come again.
            Refused: the broker does not accept the acknowledgement.
        """
        for command in self._told:
            await acknowledge_answered(self._connection, self._consumer_id, command)
        if self._acknowledgements is not None and self._told:
            self._acknowledgements.confirmed(self._place)


async def acknowledge_answered(
    connection: Connection, consumer_id: int, command: AckCommand, txn: tuple[int, int] | None = None
) -> None:
    """Send one command, perhaps as part of a transaction, and return when the broker has answered.

    Raises:
        ConnectionLost: the session ended first.
        Refused: the broker does not accept the acknowledgement.
    """
    try:
        await connection.request(partial(_ack, consumer_id, command, txn), pb.CommandAckResponse)
    except Refused as refused:
        if refused.code == pb.ServerError.ConsumerNotFound:
            raise ConnectionLost(f"the session ended before the acknowledgement arrived: {refused}") from refused
        raise


def _ack(consumer_id: int, command: AckCommand, txn: tuple[int, int] | None, request_id: int) -> pb.BaseCommand:
    return commands.ack(consumer_id, command.message_ids, cumulative=command.cumulative, txn=txn, request_id=request_id)
