"""Schemas over HTTP: a real broker keeps the versions of both kinds of topics."""

import json
from typing import Any

import pytest

from broker.names import TopicName
from broker.schemas.key_value import joined
from broker.schemas.schema import Schema, SchemaType
from tests.broker.http.test_regular import PLAIN, SPLIT, Served
from tests.broker.http.test_regular import one as one
from tests.broker.test_administration_anywhere import served
from tests.support.rooms import Rooms

BASE = "/admin/v2/schemas/public/default"


def avro(*optional: str) -> dict[str, Any]:
    """Return the payload of an Avro schema with these optional fields."""
    fields = [{"name": name, "type": ["null", "int"], "default": None} for name in optional]
    definition = json.dumps({"type": "record", "name": "R", "fields": fields})
    return {"type": "AVRO", "schema": definition, "properties": {"k": "v"}}


async def make(broker: Rooms, kind: str) -> str:
    """Make a topic of a kind. Return its path."""
    if kind == "scalable":
        await broker.controller.create_topic(PLAIN.as_scalable, 2, {})
    elif kind == "partitioned":
        await broker.partitioned_topics.create(PLAIN, 2)
    elif kind == "regular":
        await broker.topics.get(PLAIN)
    elif kind == "migrated":
        await broker.topics.get(PLAIN)
        await broker.controller.migrate(PLAIN.as_scalable, force=True)
    return f"{BASE}/plain"


@pytest.mark.parametrize("kind", ["scalable", "partitioned", "regular", "migrated", "missing"])
async def test_versions_are_added_listed_and_deleted(one: Served, kind: str) -> None:
    path = await make(one.broker, kind)
    assert (await one.refused("GET", f"{path}/schema")).status == 404
    assert await one.ask("GET", f"{path}/schemas") == {"getSchemaResponses": []}
    assert await one.ask("POST", f"{path}/schema", avro()) == {"version": {"version": 0}}
    assert await one.ask("POST", f"{path}/schema", avro("a")) == {"version": {"version": 1}}
    assert await one.ask("POST", f"{path}/schema", avro()) == {"version": {"version": 0}}
    latest = await one.ask("GET", f"{path}/schema")
    assert latest == {
        "version": 1,
        "type": "AVRO",
        "timestamp": 1_000_000,
        "data": avro("a")["schema"],
        "properties": {"k": "v"},
    }
    shown = (await one.ask("GET", f"{path}/schemas"))["getSchemaResponses"]
    assert [stored["version"] for stored in shown] == [0, 1]
    assert shown[1] == latest
    assert (await one.ask("GET", f"{path}/schema/0"))["data"] == avro()["schema"]
    assert await one.ask("POST", f"{path}/version", avro("a")) == {"version": 1}
    assert await one.ask("POST", f"{path}/version", avro("b")) == {"version": -1}
    assert await one.ask("DELETE", f"{path}/schema?force=false") == {"version": 1}
    assert (await one.refused("GET", f"{path}/schema")).status == 404
    assert (await one.refused("DELETE", f"{path}/schema")).status == 404
    assert (await one.ask("GET", f"{path}/schema/1")) == latest


async def test_a_topics_kind_decides_whose_schema_it_is(one: Served) -> None:
    """What HTTP adds is what clients find over Pulsar's protocol."""
    await make(one.broker, "scalable")
    await one.broker.partitioned_topics.create(SPLIT, 2)
    await one.ask("POST", f"{BASE}/plain/schema", avro())
    await one.ask("POST", f"{BASE}/split-partition-1/schema", avro("a"))
    for owner, fields in [(PLAIN.as_scalable, avro()), (SPLIT, avro("a"))]:
        found = await one.broker.schemas.latest(owner)
        assert found is not None
        assert found.schema.data.decode() == fields["schema"]
    assert (await one.ask("GET", f"{BASE}/split/schema"))["data"] == avro("a")["schema"]


async def test_a_schema_that_does_not_follow_is_refused(one: Served) -> None:
    path = await make(one.broker, "regular")
    await one.ask("POST", f"{path}/schema", avro("a"))
    refused = await one.refused("POST", f"{path}/schema", {"type": "STRING", "schema": "", "properties": {}})
    assert refused.status == 409
    assert "STRING" in refused.reason
    for payload, is_compatible in [(avro("b"), True), ({"type": "STRING"}, False), ({"type": "NONE"}, False)]:
        told = await one.ask("POST", f"{path}/compatibility", payload)
        assert (told["compatibility"], told["schemaCompatibilityStrategy"]) == (is_compatible, "FULL_TRANSITIVE")
        assert ("reason" in told) != is_compatible
    assert (await one.ask("GET", f"{path}/schema"))["version"] == 0


async def test_the_parts_of_a_pair_are_shown_as_json(one: Served) -> None:
    path = await make(one.broker, "regular")
    properties = {"key.schema.type": "STRING", "value.schema.type": "AVRO"}
    definition = avro()["schema"]
    payload = {"type": "KEY_VALUE", "schema": json.dumps({"key": "", "value": json.loads(definition)})}
    await one.ask("POST", f"{path}/schema", {**payload, "properties": properties})
    assert json.loads((await one.ask("GET", f"{path}/schema"))["data"]) == json.loads(payload["schema"])
    found = await one.broker.schemas.latest(PLAIN)
    assert found is not None
    stored = json.dumps(json.loads(definition), separators=(",", ":")).encode()
    assert found.schema == Schema(SchemaType.KEY_VALUE, joined(b"", stored), properties)
    again = await one.ask("POST", f"{path}/schema", {**payload, "properties": properties})
    assert again == {"version": {"version": 0}}


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"type": "AVROO"},
        {"type": 4},
        {"type": "AVRO", "schema": {}},
        {"type": "STRING", "properties": []},
        {"type": "STRING", "properties": {"a": 1}},
        {"type": "KEY_VALUE", "schema": "{"},
        {"type": "KEY_VALUE", "schema": '{"key": ""}'},
    ],
)
async def test_what_is_no_schema_is_refused(one: Served, body: object) -> None:
    path = await make(one.broker, "regular")
    before = await one.broker.metadata.scan("/", "\U0010ffff")
    for call in ("schema", "compatibility", "version"):
        refused = await one.refused("POST", f"{path}/{call}", body)
        assert refused.status == 400
        assert refused.reason.endswith(".")
    assert (await one.refused("DELETE", f"{path}/schema?force=true")).status == 501
    assert (await one.refused("GET", f"{path}/schema/x")).status == 412
    assert await one.broker.metadata.scan("/", "\U0010ffff") == before


async def test_the_owner_adds_what_another_broker_is_asked_to() -> None:
    """C14, C21: a broker that has just learned of the topic asks its owner."""
    name = TopicName.parse("persistent://public/default/plain")
    async with served("one", "two") as ((one, _), (two, address)):
        await one.topics.get(name)
        elsewhere = Served(two, address)
        assert await elsewhere.ask("POST", f"{BASE}/plain/schema", avro()) == {"version": {"version": 0}}
        assert (one.topics.owned, two.topics.owned) == ((name,), ())
        assert (await elsewhere.ask("GET", f"{BASE}/plain/schema"))["version"] == 0
