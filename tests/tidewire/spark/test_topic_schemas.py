import pytest

from tests.tidewire.spark.readable import TOPIC, Readable
from tidewire.protocol.refusals import BrokerBusy
from tidewire.spark.errors import UnreadableSchema
from tidewire.spark.topic_schemas import schema_of
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


def failing(code: pb.ServerError, words: str) -> Readable:
    """Make brokers that answer every schema request with this error."""
    world = Readable()
    world.answers[pb.BaseCommand.GET_SCHEMA] = lambda peer: (
        lambda command: [encode_command(commands.get_schema_failed(command.get_schema.request_id, code, words))]
    )
    return world


def test_a_topic_without_a_schema_is_told_with_what_to_do() -> None:
    with (
        failing(pb.TopicNotFound, "none was registered").brokers() as brokers,
        pytest.raises(UnreadableSchema, match=f"^{TOPIC} does not exist or has no schema; read it without"),
    ):
        schema_of(brokers, TOPIC)


def test_a_broker_that_cannot_tell_the_schema_now_is_not_taken_for_a_topic_without_one() -> None:
    """14: "unknown" is never read as "not there"."""
    with (
        failing(pb.MetadataError, "the store is away").brokers() as brokers,
        pytest.raises(BrokerBusy, match="the store is away"),
    ):
        schema_of(brokers, TOPIC)
