"""Reads Avro's binary form with Apache Avro's library, and leaves defaults to the dataclass.

The library refuses some valid defaults (1 for a double), and makes other bytes of those of type bytes. The defaults of
the dataclass are the same ones.

Importing this module imports the library, so only programs that read Avro do.
"""

import io

from avro.io import BinaryDecoder, DatumReader
from avro.schema import RecordSchema, Schema


def read(data: bytes, *, writer: Schema, reader: Schema) -> object:
    """The plain value that `writer` has written, in the form of `reader`. Fields that were not written are missing.

    Raises:
        Exception: the bytes are no such value, or the two do not fit; the library raises all kinds.
    """
    return _Reader(writer, reader).read(BinaryDecoder(io.BytesIO(data)))


class _Reader(DatumReader):
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
