"""Which schemas are valid, equal and compatible: one table for each question."""

import base64
import json
from dataclasses import replace

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

from broker.errors import IncompatibleSchema
from broker.schemas import compatibility
from broker.schemas.compatibility import fingerprint
from broker.schemas.schema import PRIMITIVE, SCHEMA_BYTES_MAX, Schema, SchemaType, StoredSchema
from tests.broker.schemas.test_key_value import pair


def struct_schema(kind: SchemaType, *fields: tuple[str, object, object]) -> Schema:
    """Make a record. A field has a name, a type and a default, `...` for none."""
    made = [{"name": n, "type": t, **({} if d is ... else {"default": d})} for n, t, d in fields]
    return Schema(kind, json.dumps({"type": "record", "name": "R", "fields": made}).encode())


ONE = ("a", "int", ...)
OPTIONAL = ("b", ["null", "string"], None)
REQUIRED = ("c", "string", ...)


def require_successor(earlier: Schema, new: Schema) -> None:
    compatibility.require_successor("t", StoredSchema(7, earlier, fingerprint(earlier)), new)


def require_reader(latest: Schema, consumer: Schema) -> None:
    compatibility.require_reader("t", StoredSchema(7, latest, fingerprint(latest)), consumer)


def protobuf_native(root: str, *messages: str, package: str = "p") -> Schema:
    described = [DescriptorProto(name=name, nested_type=[DescriptorProto(name="Inner")]) for name in messages]
    files = FileDescriptorSet(file=[FileDescriptorProto(name="f.proto", package=package, message_type=described)])
    content = {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": "f.proto",
    }
    return Schema(SchemaType.PROTOBUF_NATIVE, json.dumps(content).encode())


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF])
def test_a_producers_schema_and_an_earlier_one_read_each_other(kind: SchemaType) -> None:
    """Pulsar's strategy FULL_TRANSITIVE, for one of the versions."""
    latest = struct_schema(kind, ONE)
    require_successor(latest, struct_schema(kind, ONE, OPTIONAL))
    require_successor(struct_schema(kind, ONE, OPTIONAL), latest)
    for new in (struct_schema(kind, ONE, REQUIRED), struct_schema(kind), struct_schema(kind, ("a", "long", ...))):
        with pytest.raises(IncompatibleSchema, match="version 7 of the schema of t cannot read each other's"):
            require_successor(latest, new)


def test_a_consumers_schema_reads_the_latest() -> None:
    """Pulsar checks consumers with BACKWARD: they may ignore or widen fields."""
    latest = struct_schema(SchemaType.AVRO, ONE, REQUIRED)
    require_reader(latest, struct_schema(SchemaType.AVRO, ("a", "long", ...)))
    with pytest.raises(IncompatibleSchema, match="messages of version 7 of the schema of t, its latest one: version 7"):
        require_reader(latest, struct_schema(SchemaType.AVRO, ONE, ("d", "int", ...)))


@pytest.mark.parametrize("one", [SchemaType.STRING, SchemaType.INT32, SchemaType.AVRO])
@pytest.mark.parametrize("other", [SchemaType.INT64, SchemaType.JSON, SchemaType.EXTERNAL])
def test_no_type_follows_another(one: SchemaType, other: SchemaType) -> None:
    data = b'"int"'
    with pytest.raises(IncompatibleSchema, match=other.name):
        compatibility.require_successor("t", StoredSchema(0, Schema(one, data), ""), Schema(other, data))
    with pytest.raises(IncompatibleSchema, match=other.name):
        compatibility.require_reader("t", StoredSchema(0, Schema(one, data), ""), Schema(other, data))


@pytest.mark.parametrize("kind", sorted(PRIMITIVE))
def test_primitive_types_are_their_name(kind: SchemaType) -> None:
    assert fingerprint(Schema(kind)) == fingerprint(Schema(kind, b"", {"a": "b"}))
    require_successor(Schema(kind), Schema(kind))
    with pytest.raises(IncompatibleSchema):
        fingerprint(Schema(kind, b"null"))


def test_strings_of_every_client_are_the_same() -> None:
    """Java sends no definition, and Python sends `null`."""
    assert fingerprint(Schema(SchemaType.STRING)) == fingerprint(Schema(SchemaType.STRING, b"null"))
    with pytest.raises(IncompatibleSchema):
        fingerprint(Schema(SchemaType.STRING, b"{}"))


def test_equal_definitions_of_two_types_differ() -> None:
    assert fingerprint(struct_schema(SchemaType.AVRO, ONE)) != fingerprint(struct_schema(SchemaType.JSON, ONE))


@pytest.mark.parametrize("kind", [SchemaType.NONE, SchemaType.AUTO_CONSUME])
def test_words_that_are_no_schema(kind: SchemaType) -> None:
    with pytest.raises(IncompatibleSchema):
        fingerprint(Schema(kind))


def test_a_union_at_the_top_is_json_alone() -> None:
    union = Schema(SchemaType.JSON, b'["null","int"]')
    assert fingerprint(union)
    with pytest.raises(IncompatibleSchema):
        fingerprint(replace(union, type=SchemaType.AVRO))


def test_schemas_are_bounded() -> None:
    with pytest.raises(IncompatibleSchema, match="but the limit is"):
        fingerprint(Schema(SchemaType.EXTERNAL, bytes(SCHEMA_BYTES_MAX + 1)))
    with pytest.raises(IncompatibleSchema, match="but the limit is"):
        fingerprint(Schema(SchemaType.EXTERNAL, b"", {"a": "b" * 70_000}))


def test_pairs_are_judged_by_their_parts() -> None:
    value, wider, other = (
        struct_schema(SchemaType.AVRO, *fields).data for fields in ((ONE,), (ONE, OPTIONAL), (ONE, REQUIRED))
    )
    latest = pair(b"", value, key="STRING", value="AVRO")
    require_successor(latest, pair(b"", wider, key="STRING", value="AVRO"))
    assert fingerprint(latest) == fingerprint(pair(b"null", value, key="STRING", value="AVRO"))
    assert fingerprint(latest) != fingerprint(pair(b"", value, value="AVRO"))
    for new in (pair(b"", other, key="STRING", value="AVRO"), pair(b"", value, key="INT32", value="AVRO")):
        with pytest.raises(IncompatibleSchema):
            require_successor(latest, new)
    with pytest.raises(IncompatibleSchema):
        fingerprint(pair(b"", b"no json", key="STRING", value="AVRO"))


def test_the_root_message_stays() -> None:
    latest = protobuf_native("p.M", "M", "N")
    require_successor(latest, protobuf_native("p.M", "M"))
    assert fingerprint(protobuf_native("p.M.Inner", "M"))
    assert fingerprint(protobuf_native("M", "M", package=""))
    with pytest.raises(IncompatibleSchema):
        require_successor(latest, protobuf_native("p.N", "M", "N"))
    for broken in (protobuf_native("p.Q", "M"), protobuf_native("p.M.M", "M"), protobuf_native("M", "M")):
        with pytest.raises(IncompatibleSchema):
            fingerprint(broken)


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b'{"rootMessageTypeName":"M","fileDescriptorSet":"//"}'])
def test_protobuf_definitions_that_make_no_sense(data: bytes) -> None:
    with pytest.raises(IncompatibleSchema):
        fingerprint(Schema(SchemaType.PROTOBUF_NATIVE, data))
