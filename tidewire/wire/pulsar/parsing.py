"""From the bytes of one command to a command that its receiver can use without further checks.

The parser generated from PulsarApi.proto accepts more than the protocol allows. It does not require required fields. It
drops unknown enum values. It returns text that is not UTF-8 as `bytes`, where a `str` is declared. This module refuses
all of that, so no later code meets a missing id or a wrong type. Unknown fields are skipped, so newer peers are
welcome.
"""

from typing import Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tidewire.wire.pulsar.errors import MalformedCommand
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

# A command's type has the number of the field that it uses.
MEMBERS: Final[dict[int, str]] = {
    number: pb.BaseCommand.DESCRIPTOR.fields_by_number[number].name for number in pb.BaseCommand.Type.values()
}
"""The member of BaseCommand that each command type uses."""


class _TextFields(NamedTuple):
    """The fields of one message type that are text, or messages that may hold text."""

    single: list[str]
    repeated: list[str]
    child: list[str]
    children: list[str]


def _text_fields(message: Descriptor, above: frozenset[str] = frozenset()) -> _TextFields:
    found = _TextFields([], [], [], [])
    for field in message.fields:
        inner = field.message_type
        if field.type == FieldDescriptor.TYPE_STRING:
            (found.repeated if field.is_repeated else found.single).append(field.name)
        elif (
            inner is not None and inner.full_name not in above and any(_text_fields(inner, above | {message.full_name}))
        ):
            (found.children if field.is_repeated else found.child).append(field.name)
    return found


# Only message types that can hold text. The commands of the hot paths (SEND, SEND_RECEIPT, MESSAGE, FLOW) cannot, so
# checking them costs nothing.
_TEXT: Final[dict[str, _TextFields]] = {
    message.full_name: fields
    for message in pb.DESCRIPTOR.message_types_by_name.values()
    if any(fields := _text_fields(message))
}
_WITH_TEXT: Final = frozenset(
    number for number, member in MEMBERS.items() if getattr(pb.BaseCommand(), member).DESCRIPTOR.full_name in _TEXT
)
CHILDREN_MAX: Final = 10_000
"""The most key-value pairs, or other parts with text, in one list of a command. Checking each takes time."""

_CONNECT: Final = pb.BaseCommand.Type.CONNECT
_parse: Final = pb.BaseCommand.FromString


def parse_command(data: bytes | bytearray) -> pb.BaseCommand:
    """The parsed command. Its `type` is known; the member of that type is complete, and its text is text.

    A member without required fields (PING, PONG) may be absent.

    Raises:
        MalformedCommand: one of these conditions does not hold.
    """
    try:
        command = _parse(data)  # type: ignore[arg-type]  # a bytearray serves as well
    except DecodeError as error:
        raise MalformedCommand(f"a command does not parse: {error}") from error
    kind = command.type
    # An absent or unknown type reads as the enum's first value, so only that value has to be checked again.
    if kind == _CONNECT and not command.HasField("type"):
        raise MalformedCommand("a command has no type, or one that is not known")
    content: Message = getattr(command, MEMBERS[kind])
    if not content.IsInitialized():
        raise MalformedCommand(f"a command of type {pb.BaseCommand.Type.Name(kind)} lacks a field it requires")
    if kind in _WITH_TEXT:
        _check_text(content, _TEXT[content.DESCRIPTOR.full_name])
    return command


def _check_text(message: Message, fields: _TextFields) -> None:
    for name in fields.single:
        if isinstance(getattr(message, name), bytes):
            raise _not_text(message, name)
    for name in fields.repeated:
        if any(isinstance(item, bytes) for item in getattr(message, name)):
            raise _not_text(message, name)
    for name in fields.child:
        if message.HasField(name):
            child = getattr(message, name)
            _check_text(child, _TEXT[child.DESCRIPTOR.full_name])
    for name in fields.children:
        items = getattr(message, name)
        if len(items) > CHILDREN_MAX:
            raise MalformedCommand(
                f"{message.DESCRIPTOR.name}.{name} has {len(items)} items; at most {CHILDREN_MAX} are allowed"
            )
        if items:
            inner = _TEXT[items[0].DESCRIPTOR.full_name]
            for item in items:
                _check_text(item, inner)


def _not_text(message: Message, name: str) -> MalformedCommand:
    return MalformedCommand(f"{message.DESCRIPTOR.name}.{name} is not UTF-8")
