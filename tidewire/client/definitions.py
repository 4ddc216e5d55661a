"""Requests the schema version that a message names."""

from functools import partial

from tidewire.client.network import Network
from tidewire.protocol.refusals import TopicNotFound
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


async def definition_of(network: Network, topic: str, version: bytes) -> pb.Schema | None:
    """This version of the topic's or segment's schema; None if the broker has no such version.

    Raises:
        TidewireError: no broker could answer in time.
    """

    async def ask() -> pb.Schema | None:
        connection = await network.owner_of(topic)
        try:
            answer = await connection.request(partial(_get_schema, topic, version), pb.CommandGetSchemaResponse)
        except TopicNotFound:
            return None
        return answer.schema

    return await network.persistently(ask, f"requesting a schema of {topic}")


def _get_schema(topic: str, version: bytes, request_id: int) -> pb.BaseCommand:
    return commands.get_schema(request_id, topic, version=version)
