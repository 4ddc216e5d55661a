"""Random commands that can be parsed but make no sense: all types, with drawn fields, some of them plausible.

frame = drawn_frame(random.Random(7))   # the same bytes for the same seed
"""

import random
from collections.abc import Callable, Sequence
from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.support.wire import message
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.frames import encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.parsing import MEMBERS

Type = pb.BaseCommand.Type
TOPIC: Final = "topic://public/default/orders"
SEGMENT: Final = "segment://public/default/orders/0000-7fff-0"
"""Of TOPIC, if that was made with two segments."""
PLAIN: Final = "persistent://public/default/a"

ONCE = [
    *(Type.SUBSCRIBE, Type.PRODUCER, Type.SEND, Type.MESSAGE, Type.ACK, Type.FLOW, Type.UNSUBSCRIBE, Type.SUCCESS),
    *(Type.CLOSE_PRODUCER, Type.CLOSE_CONSUMER, Type.PING, Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, Type.LOOKUP),
    *(Type.PARTITIONED_METADATA, Type.CONSUMER_STATS, Type.SEEK, Type.GET_LAST_MESSAGE_ID, Type.GET_SCHEMA),
    *(Type.GET_TOPICS_OF_NAMESPACE, Type.GET_OR_CREATE_SCHEMA, Type.NEW_TXN, Type.ADD_PARTITION_TO_TXN, Type.END_TXN),
    *(Type.ADD_SUBSCRIPTION_TO_TXN, Type.TC_CLIENT_CONNECT_REQUEST, Type.SCALABLE_TOPIC_LOOKUP, Type.CONNECT),
    *(Type.SCALABLE_TOPIC_CLOSE, Type.SCALABLE_TOPIC_SUBSCRIBE, Type.WATCH_SCALABLE_TOPICS, Type.WATCH_TC_ASSIGNMENTS),
    *(Type.WATCH_SCALABLE_TOPICS_CLOSE, Type.WATCH_TC_ASSIGNMENTS_CLOSE),
]
OFTEN = [Type.SUBSCRIBE, Type.PRODUCER, Type.FLOW, Type.ACK, Type.ACK, Type.NEW_TXN, *(Type.SEND,) * 6]

TEXTS: dict[str, list[str]] = {
    "topic": [PLAIN, SEGMENT, TOPIC, f"{TOPIC}2", "segment://public/default/orders/0000-3fff-2", "x", ""],
    "subscription": ["s", "t", ""],
    "namespace": ["public/default", "public", "a/b/c"],
    "consumer_name": ["c", "c-seg-0", ""],
    "producer_name": ["p", ""],
}
VALUES: dict[int, list[object]] = {
    FieldDescriptor.TYPE_UINT64: [0, 1, 2, 2**32, 2**62 | 1, 2**63 - 1, 2**63, 2**64 - 1],
    FieldDescriptor.TYPE_INT64: [0, 1, -1, 1_000, -(2**63), 2**63 - 1],
    FieldDescriptor.TYPE_UINT32: [0, 1, 10, 2**32 - 1],
    FieldDescriptor.TYPE_INT32: [0, 1, -1, 2, -(2**31), 2**31 - 1],
    FieldDescriptor.TYPE_BOOL: [False, True],
    FieldDescriptor.TYPE_STRING: ["", "x", "é", "\0", "a/b", "*" * 2_000],
    FieldDescriptor.TYPE_BYTES: [b"", bytes(8), b"\xff" * 9, b'{"type":"record","name":"R","fields":[]}'],
}


def draw(chance: random.Random, content: Message, depth: int = 0) -> None:
    """Give most fields a value of their type."""
    for field in content.DESCRIPTOR.fields:
        if not field.is_required and (chance.random() < 0.4 or depth > 2):
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = getattr(content, field.name)
            for _ in range(chance.randrange(3) if field.is_repeated else 1):
                draw(chance, inner.add() if field.is_repeated else inner, depth + 1)
            if not field.is_repeated:
                inner.SetInParent()
            continue
        if field.enum_type is not None:
            choices: Sequence[object] = [value.number for value in field.enum_type.values]
        else:
            choices = TEXTS.get(field.name) or VALUES[field.type]
        if field.is_repeated:
            getattr(content, field.name).extend(chance.choices(choices, k=chance.randrange(4)))
        else:
            setattr(content, field.name, chance.choice(choices))


def sensible(chance: random.Random, content: Message) -> None:
    """Fill in names of objects that may exist, because a command that is refused at once tests little."""
    wished: dict[str, Callable[[], object]] = {
        **dict.fromkeys(("consumer_id", "producer_id", "session_id", "watch_id"), lambda: chance.choice([1, 2])),
        "topic": lambda: chance.choice([PLAIN, SEGMENT]),
        "sub_type": lambda: chance.choice([pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared]),
        "producer_access_mode": lambda: pb.Shared,
        "scalable": lambda: True,
        "tc_id": lambda: 0,
        "txnid_most_bits": lambda: 0,
        "txnid_least_bits": lambda: 2**62 | chance.choice([0, 1, 2]),
        "num_messages": lambda: 1,
    }
    for name, value in wished.items():
        if name in content.DESCRIPTOR.fields_by_name:
            setattr(content, name, value())
    for name in ("read_compacted", "schema", "metadata"):
        field = content.DESCRIPTOR.fields_by_name.get(name)
        if field is not None and not field.is_required:
            content.ClearField(name)
    if isinstance(content, pb.CommandSend | pb.CommandAck) and chance.random() < 0.5:
        content.ClearField("txnid_most_bits")
        content.ClearField("txnid_least_bits")
    if isinstance(content, pb.CommandAck):
        for identity in content.message_id:
            identity.ledger_id, identity.entry_id = chance.randrange(5), chance.randrange(4)


def drawn_frame(chance: random.Random) -> bytes:
    """Return one command, with a payload if its type has one."""
    kind = chance.choice(ONCE + OFTEN)
    command = pb.BaseCommand(type=kind)
    content: Message = getattr(command, MEMBERS[kind])
    content.SetInParent()
    draw(chance, content)
    if chance.random() < 0.8:
        sensible(chance, content)
    if kind not in (Type.SEND, Type.MESSAGE):
        return encode_command(command)
    metadata = pb.MessageMetadata()
    draw(chance, metadata)
    return encode_payload_command(
        command, chance.choice([message(), message(), b"\0\1", build_payload(metadata, b"value")])
    )
