"""Tidewire: a transactional event-streaming broker, and its client.

    import tidewire

    async with tidewire.connect("pulsar://127.0.0.1:6650") as client:
        async with client.producer("topic://public/default/flights") as producer:
            async with client.transaction() as txn:
                await producer.send(b"departed", key="JFK", txn=txn)

The names here are imported when first used: the broker and Spark's workers live in the same package and need none of
them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidewire.client.checkpoint import Checkpoint
    from tidewire.client.checkpoint_consumer import CheckpointConsumer
    from tidewire.client.client import Client, connect
    from tidewire.client.consumers import Consumer
    from tidewire.client.dead_letters import DeadLetterPolicy
    from tidewire.client.errors import Closed, DataDamaged, MessageCorrupted, SendUnanswered, TransactionEnded
    from tidewire.client.message import Message
    from tidewire.client.producer import Producer
    from tidewire.client.queue_consumer import QueueConsumer
    from tidewire.client.reader import Reader
    from tidewire.client.redelivery import BackoffPolicy
    from tidewire.client.schema import Schema
    from tidewire.client.sending import Batching, Chunking, Receipt
    from tidewire.client.stream_consumer import StreamConsumer
    from tidewire.client.transactions import Transaction, TransactionState
    from tidewire.protocol.errors import (
        ConnectFailed,
        ConnectionLost,
        InvalidName,
        MessageTooLarge,
        OperationTimedOut,
        OutcomeUnknown,
        ProtocolViolation,
        TidewireError,
        UnsupportedBroker,
    )
    from tidewire.protocol.positions import MessageId, Position
    from tidewire.protocol.refusals import (
        BrokerBusy,
        BrokerFull,
        IncompatibleSchema,
        InvalidTopic,
        NameTaken,
        NotAllowed,
        NotPermitted,
        ProducerFenced,
        Refused,
        SubscriptionBusy,
        TopicNotFound,
        TopicTerminated,
        TransactionConflict,
        TransactionNotFound,
    )

_MODULES: Final[dict[str, tuple[str, ...]]] = {
    "client.checkpoint": ("Checkpoint",),
    "client.checkpoint_consumer": ("CheckpointConsumer",),
    "client.client": ("Client", "connect"),
    "client.consumers": ("Consumer",),
    "client.dead_letters": ("DeadLetterPolicy",),
    "client.errors": (
        "Closed",
        "DataDamaged",
        "MessageCorrupted",
        "SendUnanswered",
        "TransactionEnded",
    ),
    "client.message": ("Message",),
    "client.producer": ("Producer",),
    "client.queue_consumer": ("QueueConsumer",),
    "client.reader": ("Reader",),
    "client.redelivery": ("BackoffPolicy",),
    "client.schema": ("Schema",),
    "client.sending": ("Batching", "Chunking", "Receipt"),
    "client.stream_consumer": ("StreamConsumer",),
    "client.transactions": ("Transaction", "TransactionState"),
    "protocol.errors": (
        "ConnectFailed",
        "ConnectionLost",
        "InvalidName",
        "MessageTooLarge",
        "OperationTimedOut",
        "OutcomeUnknown",
        "ProtocolViolation",
        "TidewireError",
        "UnsupportedBroker",
    ),
    "protocol.positions": ("MessageId", "Position"),
    "protocol.refusals": (
        "BrokerBusy",
        "BrokerFull",
        "IncompatibleSchema",
        "InvalidTopic",
        "NameTaken",
        "NotAllowed",
        "NotPermitted",
        "ProducerFenced",
        "Refused",
        "SubscriptionBusy",
        "TopicNotFound",
        "TopicTerminated",
        "TransactionConflict",
        "TransactionNotFound",
    ),
}
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "BackoffPolicy",
    "Batching",
    "BrokerBusy",
    "BrokerFull",
    "Checkpoint",
    "CheckpointConsumer",
    "Chunking",
    "Client",
    "Closed",
    "ConnectFailed",
    "ConnectionLost",
    "Consumer",
    "DataDamaged",
    "DeadLetterPolicy",
    "IncompatibleSchema",
    "InvalidName",
    "InvalidTopic",
    "Message",
    "MessageCorrupted",
    "MessageId",
    "MessageTooLarge",
    "NameTaken",
    "NotAllowed",
    "NotPermitted",
    "OperationTimedOut",
    "OutcomeUnknown",
    "Position",
    "Producer",
    "ProducerFenced",
    "ProtocolViolation",
    "QueueConsumer",
    "Reader",
    "Receipt",
    "Refused",
    "Schema",
    "SendUnanswered",
    "StreamConsumer",
    "SubscriptionBusy",
    "TidewireError",
    "TopicNotFound",
    "TopicTerminated",
    "Transaction",
    "TransactionConflict",
    "TransactionEnded",
    "TransactionNotFound",
    "TransactionState",
    "UnsupportedBroker",
    "connect",
]


def __getattr__(name: str) -> object:
    """Import the module that a public name lives in, when the name is first used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"tidewire.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__]
