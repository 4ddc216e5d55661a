"""How a segment's consumer subscribes and moves: the commands for it."""

import logging
from dataclasses import dataclass
from functools import partial
from math import ceil
from time import time_ns
from typing import Final

from tidewire.client.connection import Connection
from tidewire.protocol.positions import AFTER_ALL, BEFORE_ALL, Position
from tidewire.protocol.refusals import NotAllowed, Refused
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position

_log: Final = logging.getLogger(__name__)

QUEUE_MESSAGES_MAX: Final = 1000
"""Messages of one segment that may wait in the inbox, unless the consumer was given another number."""

CLOCKS_APART_SECONDS_MAX: Final = 60
"""How far the clocks of producers, broker and this process may be apart for a reader that begins at a time to find its
first message: it asks for so much more, and leaves out what was published too early."""


@dataclass(frozen=True, slots=True)
class SubscriptionPlan:
    """How to subscribe."""

    subscription: str
    consumer_name: str | None = None
    sub_type: pb.CommandSubscribe.SubType = pb.CommandSubscribe.SubType.Exclusive
    initial_position: pb.CommandSubscribe.InitialPosition = pb.CommandSubscribe.InitialPosition.Earliest
    """Where a subscription that does not exist yet begins."""
    is_durable: bool = True
    """Whether the broker keeps the position; a reader keeps it by itself."""
    queue_messages_max: int = QUEUE_MESSAGES_MAX
    schema: pb.Schema | None = None
    """What the consumer says that it reads."""
    bears: tuple[type[Refused], ...] = ()
    """Refusals that ask for patience rather than for giving up."""


def subscribe_command(
    topic: str, plan: SubscriptionPlan, consumer_id: int, after: Position | None, since_ms: int | None, request_id: int
) -> pb.BaseCommand:
    """Subscribes; a reader behind the message `after`, or when that is before all, at the time `since_ms` if given."""
    return commands.subscribe(
        topic,
        plan.subscription,
        consumer_id,
        request_id,
        sub_type=plan.sub_type,
        name=plan.consumer_name,
        durable=plan.is_durable,
        initial_position=plan.initial_position,
        start=None if after is None else _start_id(after),
        start_seconds_ago=None if after != BEFORE_ALL else _seconds_ago(since_ms),
        consumer_epoch=0,
        schema=plan.schema,
    )


def _seconds_ago(since_ms: int | None) -> int | None:
    return None if since_ms is None else max(0, ceil(time_ns() / 1e9 - since_ms / 1000)) + CLOCKS_APART_SECONDS_MAX


def _start_id(after: Position) -> pb.MessageIdData:
    if after.is_whole_entry:
        return message_id(after.ledger_id, after.entry_id)
    return message_id(after.ledger_id, after.entry_id, batch_index=after.batch_index, batch_size=after.batch_size)


def seek_command(consumer_id: int, to: Position | int, request_id: int) -> pb.BaseCommand:
    """Moves the subscription behind a message, or to the first that came at a time, in ms since the epoch."""
    if isinstance(to, int):
        return commands.seek(consumer_id, request_id, publish_time_ms=to)
    if to in (BEFORE_ALL, AFTER_ALL) or not to.is_whole_entry:
        return commands.seek(consumer_id, request_id, to=message_id(to.ledger_id, to.entry_id))
    # Brokers go on with the entry that is named.
    return commands.seek(consumer_id, request_id, to=message_id(to.ledger_id, to.entry_id + 1))


async def last_position(connection: Connection, consumer_id: int, topic: str) -> Position | None:
    """The position of the topic's last message; None when the broker does not tell it.

    Raises:
        TidewireError: the session ended, or it was refused otherwise.
    """
    try:
        answer = await connection.request(
            partial(commands.get_last_message_id, consumer_id), pb.CommandGetLastMessageIdResponse
        )
    except NotAllowed as error:
        _log.info("%s does not tell the last message of %s: %s", connection.address, topic, error)
        return None
    return Position(*position(answer.last_message_id))
