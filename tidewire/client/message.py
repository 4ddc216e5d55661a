"""What a consumer returns: a message, and its id, which also holds the consumer's position on other segments."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from tidewire.client.schema import T
from tidewire.protocol.positions import MessageId


@dataclass(frozen=True, slots=True)
class Message(Generic[T]):
    """One message as it was sent, and its id."""

    value: T
    """What was sent, decoded by the consumer's schema. None for a null message, unless values are bytes."""
    key: str | None
    properties: Mapping[str, str]
    event_time_ms: int | None
    """When it happened, as the sender said; milliseconds since the epoch."""
    publish_time_ms: int
    """When the producer sent it, by the producer's clock; milliseconds since the epoch."""
    message_id: MessageId
    topic: str
    """The topic, segment or partition it was read from."""
    producer_name: str
    sequence_id: int
    """Rises within one producer and segment."""
    redelivery_count: int
    """How often the broker had delivered it before on this subscription."""
    is_null: bool = False
    """It was sent without a value, which is not the same as an empty one."""
    data: bytes = b""
    """The bytes that were sent, before decoding."""
