"""Hypothesis strategies for messages of the wire protocol, made from their descriptors.

    command = draw(commands())          any command type, its member filled in at random, required fields always

These messages are always complete, and all their text is text. Tests add faults themselves.
"""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.parsing import MEMBERS

_DEPTH_MAX = 2
_NUMBERS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_STRING: st.text(max_size=8),
}


def _value(field: FieldDescriptor, draw: st.DrawFn, depth: int) -> Any:
    if field.message_type is not None:
        return draw(_fields(field.message_type, depth - 1))
    if field.enum_type is not None:
        return draw(st.sampled_from([value.number for value in field.enum_type.values]))
    return draw(_NUMBERS[field.type])


@st.composite
def _fields(draw: st.DrawFn, descriptor: Any, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for field in descriptor.fields:
        if field.containing_oneof is not None and any(other.name in made for other in field.containing_oneof.fields):
            continue
        wanted = field.is_required or (depth > 0 and draw(st.booleans()))
        if not wanted:
            continue
        if field.is_repeated:
            made[field.name] = [_value(field, draw, depth) for _ in range(draw(st.integers(0, 2)))]
        else:
            made[field.name] = _value(field, draw, depth)
    return made


@st.composite
def commands(draw: st.DrawFn) -> pb.BaseCommand:
    """Draw any command."""
    number = draw(st.sampled_from(sorted(MEMBERS)))
    member = MEMBERS[number]
    descriptor = pb.BaseCommand.DESCRIPTOR.fields_by_name[member].message_type
    parts: dict[str, Any] = {"type": number, member: draw(_fields(descriptor, _DEPTH_MAX))}
    made = pb.BaseCommand(**parts)
    assert made.IsInitialized(), "the strategy fills in what is required"
    return made


def field(number: int, content: bytes) -> bytes:
    """Return a message or string as a field of another message; the field's number is below 16."""
    size = len(content)
    encoded_size = bytearray()
    while size > 127:
        encoded_size.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *encoded_size, size]) + content


def encoded_without(message: Message, name: str) -> bytes:
    """Return the message's bytes without one field, as a faulty peer would send them."""
    copy = type(message)()
    copy.CopyFrom(message)
    copy.ClearField(name)
    return copy.SerializePartialToString()
