"""What a consumer gets: a message, and the id that says where it stands and how far its consumer had come."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from tidewire.client.schema import T
from tidewire.protocol.positions import MessageId


@dataclass(frozen=True, slots=True)
class Message(Generic[T]):
    """One message as it was sent, and where it stands."""

    value: T
    """What was sent, as the consumer's schema reads it; of a null message None, unless values are bytes."""
    key: str | None
    properties: Mapping[str, str]
    event_time_ms: int | None
    """When it happened, as the sender said; milliseconds since the epoch."""
    publish_time_ms: int
    """When it was sent, by the sender's clock; milliseconds since the epoch."""
    message_id: MessageId
    topic: str
    """The topic, segment or partition it was read from."""
    producer_name: str
    sequence_id: int
    """Counts up within one producer and segment."""
    redelivery_count: int
    """How often the broker had sent it before on this subscription."""
    is_null: bool = False
    """It was sent without a value, which is not the same as an empty one."""
    data: bytes = b""
    """The bytes that the value was sent as."""
