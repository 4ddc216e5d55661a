"""Reads Avro's binary form with Apache Avro's library, and leaves defaults to the dataclass.

The library refuses some valid defaults (1 for a double), and makes other bytes of those of type bytes. The defaults of
the dataclass are the same ones.

Names count without their namespaces, as Avro's specification says and Pulsar's brokers do. The library compares full
names, so a Python class would read nothing that a Java class has written.

Importing this module imports the library, so only programs that read Avro do.
"""

import io
import json
from typing import Any, Final

import avro.schema
from avro.io import BinaryDecoder, DatumReader
from avro.schema import NamedSchema, RecordSchema, Schema, UnionSchema

_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})


def parsed(definition: bytes) -> Schema:
    """Parse a definition, without its namespaces. It keeps them if it has two types of one name.

    Raises:
        Exception: it is not a definition; the library raises all kinds.
    """
    content = json.loads(definition)
    names: list[str] = []
    bare = _without_namespaces(content, names)
    return avro.schema.parse(json.dumps(bare if len(set(names)) == len(names) else content))


def _without_namespaces(node: Any, names: list[str]) -> Any:  # noqa: ANN401 - JSON
    """Return a definition with bare names. `names` gets those of the types that it defines."""
    if isinstance(node, str):
        return _bare(node)
    if isinstance(node, list):
        return [_without_namespaces(branch, names) for branch in node]
    bare = {key: value for key, value in node.items() if key != "namespace"}
    if isinstance(node["type"], str) and node["type"] in _NAMED:
        bare["name"] = _bare(node["name"])
        names.append(bare["name"])
    else:
        bare["type"] = _without_namespaces(node["type"], names)
    if "fields" in node:
        bare["fields"] = [{**field, "type": _without_namespaces(field["type"], names)} for field in node["fields"]]
    for part in {"items", "values"} & node.keys():
        bare[part] = _without_namespaces(node[part], names)
    return bare


def _bare(name: str) -> str:
    return name.rpartition(".")[2]


def read(data: bytes, *, writer: Schema, reader: Schema) -> object:
    """The plain value that `writer` has written, in the form of `reader`. Fields that were not written are missing.

    Raises:
        ValueError: a type's name differs, or bytes are left behind the value.
        Exception: the bytes are no such value, or the two do not fit; the library raises all kinds.
    """
    stream = io.BytesIO(data)
    value = _Reader(writer, reader).read(BinaryDecoder(stream))
    require_end(stream)
    return value


def require_end(stream: io.BytesIO) -> None:
    """Refuse bytes behind a value. Almost any bytes begin with some record, so these were sent without the schema.

    Raises:
        ValueError: bytes are left.
    """
    left = len(stream.getbuffer()) - stream.tell()
    if left:
        raise ValueError(f"{left} bytes are left behind the value, so it was not written with its schema")


class _Reader(DatumReader):
    def read_data(self, writers_schema: Schema, readers_schema: Schema, decoder: BinaryDecoder) -> object:
        if isinstance(writers_schema, NamedSchema) and not readers_schema.match(writers_schema):
            branches = readers_schema.schemas if isinstance(readers_schema, UnionSchema) else (readers_schema,)
            kind, written = writers_schema.type, writers_schema.name
            wanted = [branch.name for branch in branches if branch.type == kind and isinstance(branch, NamedSchema)]
            if wanted:
                here = f"the class here is named {wanted[0]}. Name it {written}"
                raise ValueError(f"it was written as the {kind} {written}, and {here}")
        return super().read_data(writers_schema, readers_schema, decoder)

    def read_record(
        self, writers_schema: RecordSchema, readers_schema: RecordSchema, decoder: BinaryDecoder
    ) -> dict[str, object]:
        wanted = readers_schema.fields_dict
        read: dict[str, object] = {}
        for field in writers_schema.fields:
            if field.name in wanted:
                read[field.name] = self.read_data(field.type, wanted[field.name].type, decoder)
            else:
                self.skip_data(field.type, decoder)
        return read
