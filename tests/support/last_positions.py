"""Asks a broker for the last readable positions of segments. A new reader could read up to there now."""

from collections.abc import Iterable
from functools import partial
from typing import Final

import trio

from tidewire.client.connection import Connection
from tidewire.client.network import dial_tcp
from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.errors import TidewireError
from tidewire.protocol.listeners import Kind
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import position

SECONDS_MAX: Final = 120.0


class _Deaf:
    """Ignores everything."""

    def received(self, command: pb.BaseCommand, payload: bytes | None) -> None:
        """See `Listener`."""

    def connection_lost(self, error: TidewireError) -> None:
        """See `Listener`."""


async def last_positions(host: str, port: int, topics: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return, by topic, the ledger and entry of the last readable message; (-1, -1) if there is none.

    Raises:
        TidewireError, OSError: the broker is unreachable, or refuses.
    """
    address = BrokerAddress(host, port)
    connection = Connection(
        await dial_tcp(address),
        address,
        connect_timeout_seconds=SECONDS_MAX,
        operation_timeout_seconds=SECONDS_MAX,
        keep_alive_seconds=SECONDS_MAX,
    )
    found: dict[str, tuple[int, int]] = {}
    failure: TidewireError | None = None
    async with trio.open_nursery() as nursery:
        # Failures leave the nursery by themselves and not as members of a group.
        try:
            await nursery.start(connection.run)
            for topic in topics:
                found[topic] = await _last_position(connection, topic)
        except TidewireError as error:
            failure = error
        finally:
            # It is shielded and ends by this alone, cancelled or not.
            await connection.aclose()
    if failure is not None:
        raise failure
    return found


async def _last_position(connection: Connection, topic: str) -> tuple[int, int]:
    consumer_id = connection.attach(Kind.CONSUMER, _Deaf())
    await connection.request(
        partial(commands.subscribe, topic, "last-position", consumer_id, durable=False), pb.CommandSuccess
    )
    answer = await connection.request(
        partial(commands.get_last_message_id, consumer_id), pb.CommandGetLastMessageIdResponse
    )
    await connection.request(partial(commands.close_consumer, consumer_id), pb.CommandSuccess)
    return position(answer.last_message_id)
