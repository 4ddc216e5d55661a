"""An entry format that no protocol here uses, and its codec. It shows that topics do not need Pulsar.

payload = plain("p", 3, key=b"k", message="m", chunk=0, chunks=2)   # of producer p, its send 3
EntryCodecs({EntryFormat.KAFKA: PlainCodec()})                      # it replaces a format without a front end

The codec knows nothing about a payload that it cannot parse.
"""

import orjson

from broker.contents import Content, Contents
from broker.entry_codecs import Send, SendId
from dispatch.chunks import Chunk
from storage.entry import Entry
from storage.metadata.steps import Steps


def plain(
    producer: str, sequence: int, *, key: bytes | None = None, message: str = "", chunk: int = 0, chunks: int = 1
) -> bytes:
    """Make a payload in this format."""
    text = None if key is None else key.decode()
    return orjson.dumps([producer, sequence, text, message, chunk, chunks])


class PlainCodec:
    """See `EntryCodec`."""

    def chunk_of(self, entry: Entry) -> Chunk | None:
        """See `EntryCodec`."""
        fields = _fields(entry)
        if fields is None:
            return None
        _producer, _sequence, _key, message, chunk, chunks = fields
        return Chunk(hash(message), chunk == chunks - 1) if chunks > 1 else None

    def key_of(self, entry: Entry) -> bytes | None:
        """See `EntryCodec`."""
        fields = _fields(entry)
        return None if fields is None or fields[2] is None else fields[2].encode()

    def send_of(self, entry: Entry) -> Send | None:
        """See `EntryCodec`."""
        fields = _fields(entry)
        return None if fields is None else Send(fields[0], SendId(fields[1], fields[1], fields[4], fields[5]))

    def contents_of(self, entry: Entry, first: int, count: int) -> Steps[Contents]:
        """See `EntryCodec`. A payload is one message, told as it is."""
        yield
        return Contents([Content(entry.payload)][first : first + count])

    def control_of(self, entry: Entry) -> str:
        """See `EntryCodec`."""
        return ""

    def trace_contexts_of(self, _payload: bytes, _message_count: int) -> tuple[()]:
        """See `EntryCodec`. Nothing in this format is traced."""
        return ()


def _fields(entry: Entry) -> tuple[str, int, str | None, str, int, int] | None:
    try:
        producer, sequence, key, message, chunk, chunks = orjson.loads(entry.payload)
    except ValueError:
        return None
    return producer, sequence, key, message, chunk, chunks
