"""Schemas of the unmodified Python `pulsar-client`, against a broker started as users start it."""

import uuid
from collections.abc import Iterator

import pulsar
import pulsar.schema
import pytest

from tests.scenarios.test_pulsar_client import RECEIVE_MS_MAX, connected
from tests.support.processes import RunningBroker, running_broker


class Trip(pulsar.schema.Record):  # type: ignore[misc]
    origin = pulsar.schema.String()
    passengers = pulsar.schema.Integer()


class LongerTrip(pulsar.schema.Record):  # type: ignore[misc]
    """A version with one more field, which has a default; each version can read the other."""

    origin = pulsar.schema.String()
    passengers = pulsar.schema.Integer()
    delay = pulsar.schema.Integer(required_default=True)


class OtherTrip(pulsar.schema.Record):  # type: ignore[misc]
    origin = pulsar.schema.String()
    passengers = pulsar.schema.Integer()
    carrier = pulsar.schema.String(required=True)


# A record's name counts for compatibility, and this client takes it from the class.
LongerTrip.__name__ = OtherTrip.__name__ = "Trip"

SCHEMAS = pytest.mark.parametrize("schema_of", [pulsar.schema.AvroSchema, pulsar.schema.JsonSchema])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/{uuid.uuid4().hex}"


@SCHEMAS
def test_records_pass_from_one_version_to_the_next(
    broker: RunningBroker, topic: str, schema_of: type[pulsar.schema.Schema]
) -> None:
    """The consumer decodes each message with the version it was written with, which it requests from the broker."""
    with connected(broker) as client:
        consumer = client.subscribe(
            topic, "s", schema=schema_of(LongerTrip), initial_position=pulsar.InitialPosition.Earliest
        )
        old = client.create_producer(topic, schema=schema_of(Trip))
        new = client.create_producer(topic, schema=schema_of(LongerTrip))
        old.send(Trip(origin="EWR", passengers=3))
        new.send(LongerTrip(origin="JFK", passengers=4, delay=17))
        received = [consumer.receive(timeout_millis=RECEIVE_MS_MAX) for _ in range(2)]
        assert [(m.value().origin, m.value().passengers, m.value().delay) for m in received] == [
            ("EWR", 3, None),
            ("JFK", 4, 17),
        ]
        # The consumer came first, so its schema is version 0; each producer's messages name the version of its own.
        assert [message._message.int_schema_version() for message in received] == [1, 0]


@SCHEMAS
def test_versions_survive_kill_and_restart(
    broker: RunningBroker, topic: str, schema_of: type[pulsar.schema.Schema]
) -> None:
    with connected(broker) as client:
        client.create_producer(topic, schema=schema_of(Trip)).send(Trip(origin="EWR", passengers=3))
    broker.kill()
    broker.restart()
    with connected(broker) as client:
        producer = client.create_producer(topic, schema=schema_of(Trip))
        producer.send(Trip(origin="JFK", passengers=4))
        consumer = client.subscribe(
            topic, "s", schema=schema_of(Trip), initial_position=pulsar.InitialPosition.Earliest
        )
        received = [consumer.receive(timeout_millis=RECEIVE_MS_MAX) for _ in range(2)]
        assert [message.value().origin for message in received] == ["EWR", "JFK"]
        assert [message._message.int_schema_version() for message in received] == [0, 0]


@SCHEMAS
def test_what_does_not_go_with_the_topic_is_refused(
    broker: RunningBroker, topic: str, schema_of: type[pulsar.schema.Schema]
) -> None:
    """The code is IncompatibleSchema. Existing clients continue."""
    with connected(broker) as client:
        producer = client.create_producer(topic, schema=schema_of(Trip))
        for schema in (schema_of(OtherTrip), pulsar.schema.StringSchema()):
            with pytest.raises(pulsar.IncompatibleSchema):
                client.create_producer(topic, schema=schema)
            with pytest.raises(pulsar.IncompatibleSchema):
                client.subscribe(topic, "s", schema=schema)
        producer.send(Trip(origin="EWR", passengers=3))


def test_strings(broker: RunningBroker, topic: str) -> None:
    """A topic that was used without a schema refuses a consumer that declares strings."""
    with connected(broker) as client:
        consumer = client.subscribe(
            topic, "s", schema=pulsar.schema.StringSchema(), initial_position=pulsar.InitialPosition.Earliest
        )
        client.create_producer(topic, schema=pulsar.schema.StringSchema()).send("häuser")
        assert consumer.receive(timeout_millis=RECEIVE_MS_MAX).value() == "häuser"
        plain = topic + "-plain"
        client.create_producer(plain).send(b"\xff")
        with pytest.raises(pulsar.IncompatibleSchema):
            client.subscribe(plain, "s", schema=pulsar.schema.StringSchema())
