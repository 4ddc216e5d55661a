"""Shows an entry to Pulsar's administration tools: its metadata as header fields, and its body without compression.

The tools read Pulsar's fields (`TopicsImpl` of Pulsar's Java client). They read names exactly as they are written here.
HTTP limits what a field may hold, and the tools accept 8 KiB of fields in all. What does not fit is left out, and the
field `X-Tidewire-Left-Out` names it. If the body cannot be decompressed, it is as it is stored, and
`X-Tidewire-Problem` says why.
"""

import json
import string
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

from broker.contents import ToolView, time_text
from broker.pulsar.contents import sentence
from storage.entry import Entry
from tidewire.wire.pulsar.compression import decompress_steps
from tidewire.wire.pulsar.errors import WireError
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import parse_payload, require_readable
from tidewire.wire.steps import Steps

FIELD_MAX: Final = 1_024
"""Characters of a field. One that is longer is left out."""

PROPERTIES_MAX: Final = 3_072
"""Characters of all properties together, as JSON in ASCII."""

ALL_MAX: Final = 6_144
"""Characters of all fields with their names. Further ones are left out."""

_PRINTABLE: Final = frozenset(string.ascii_letters + string.digits + string.punctuation + " ")


def tool_view(entry: Entry) -> Steps[ToolView]:
    """See `ViewForTools`."""
    try:
        metadata, stored = parse_payload(entry.payload)
    except WireError as problem:
        return ToolView((("X-Tidewire-Problem", sentence(problem)),), entry.payload)
    made = _Fields()
    body = bytes(stored)
    if metadata.encryption_keys:
        made.add("X-Pulsar-Is-Encrypted", "true")
        # The client reads a batch from the body, and it cannot read this one.
    elif metadata.num_chunks_from_msg <= 1:
        try:
            require_readable(metadata, stored)
            body = bytes((yield from decompress_steps(metadata.compression, stored, metadata.uncompressed_size)))
            if metadata.HasField("num_messages_in_batch"):
                made.add("X-Pulsar-num-batch-message", str(metadata.num_messages_in_batch))
                made.add("X-Pulsar-batch-size", str(len(body)))
        except WireError as problem:
            made.add("X-Tidewire-Problem", sentence(problem))
    yield
    for field, name, text in _TEXTS:
        if metadata.HasField(field):
            made.add(name, text(getattr(metadata, field)))
    _add_key(made, metadata)
    for key in metadata.encryption_keys:
        made.add("X-Pulsar-Base64-encryption-keys", _base64(key.SerializeToString()))
    if metadata.properties:
        properties = {_text(pair.key): _text(pair.value) for pair in metadata.properties}
        made.add("X-Pulsar-PROPERTY", json.dumps(properties), size_max=PROPERTIES_MAX)
    return ToolView(made.whole(), body)


class _Fields:
    def __init__(self) -> None:
        self._kept: list[tuple[str, str]] = []
        self._left_out: list[str] = []
        self._size = 0

    def add(self, name: str, text: str, *, size_max: int = FIELD_MAX) -> None:
        size = len(name) + len(text)
        is_kept = text != "" and len(text) <= size_max and self._size + size <= ALL_MAX and _PRINTABLE.issuperset(text)
        if is_kept:
            self._size += size
            self._kept.append((name, text))
        elif name not in self._left_out:
            self._left_out.append(name)

    def whole(self) -> tuple[tuple[str, str], ...]:
        if self._left_out:
            return (*self._kept, ("X-Tidewire-Left-Out", ", ".join(self._left_out)))
        return tuple(self._kept)


def _add_key(made: _Fields, metadata: pb.MessageMetadata) -> None:
    if metadata.null_partition_key:
        made.add("X-Pulsar-null-partition-key", "true")
    if not metadata.HasField("partition_key"):
        return
    key, is_base64 = _text(metadata.partition_key), metadata.partition_key_b64_encoded
    if not is_base64 and not _PRINTABLE.issuperset(key):
        key, is_base64 = _base64(key.encode()), True
    made.add("X-Pulsar-partition-key", key)
    made.add("X-Pulsar-partition-key-b64-encoded", _flag(is_base64))


def _text(value: str | bytes) -> str:
    # The parser returns text that is not UTF-8 as bytes.
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _flag(value: bool) -> str:
    return str(value).lower()


_TEXTS: Final[tuple[tuple[str, str, Callable[[Any], str]], ...]] = (
    ("publish_time", "X-Pulsar-publish-time", time_text),
    ("event_time", "X-Pulsar-event-time", time_text),
    ("deliver_at_time", "X-Pulsar-deliver-at-time", time_text),
    ("producer_name", "X-Pulsar-producer-name", _text),
    ("sequence_id", "X-Pulsar-sequence-id", str),
    ("highest_sequence_id", "X-Pulsar-highest-sequence-id", str),
    ("replicated_from", "X-Pulsar-replicated-from", _text),
    ("compression", "X-Pulsar-compression", pb.CompressionType.Name),
    ("uncompressed_size", "X-Pulsar-uncompressed-size", str),
    ("encryption_algo", "X-Pulsar-encryption-algo", _text),
    ("encryption_param", "X-Pulsar-Base64-encryption-param", _base64),
    ("ordering_key", "X-Pulsar-Base64-ordering-key", _base64),
    ("schema_version", "X-Pulsar-Base64-schema-version-b64encoded", _base64),
    ("null_value", "X-Pulsar-null-value", _flag),
    ("txnid_least_bits", "X-Pulsar-txnid-least-bits", str),
    ("txnid_most_bits", "X-Pulsar-txnid-most-bits", str),
    ("uuid", "X-Pulsar-uuid", _text),
    ("num_chunks_from_msg", "X-Pulsar-num-chunks-from-msg", str),
    ("total_chunk_msg_size", "X-Pulsar-total-chunk-msg-size", str),
    ("chunk_id", "X-Pulsar-chunk-id", str),
)
"""Fields of the metadata, with their names in HTTP and their texts."""
