"""The commands by which a segment's consumer subscribes and seeks."""

import logging
from dataclasses import dataclass
from functools import partial
from math import ceil
from time import time_ns
from typing import Final

from tidewire.client.connection import Connection
from tidewire.client.topic_end import ToldEnd
from tidewire.protocol.positions import AFTER_ALL, BEFORE_ALL, EARLIEST, LATEST, EntryPosition, Position
from tidewire.protocol.refusals import NotAllowed, Refused
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position

_log: Final = logging.getLogger(__name__)

QUEUE_MESSAGES_MAX: Final = 1000
"""Messages of one segment that may wait in the inbox, unless the caller gives another number."""

CLOCKS_APART_SECONDS_MAX: Final = 60
"""How far apart the clocks of producers, broker and this process may be for a reader that begins at a time. It asks for
messages from so much earlier, and drops those that were published too early."""


@dataclass(frozen=True, slots=True)
class SubscriptionPlan:
    """How to subscribe."""

    subscription: str
    consumer_name: str | None = None
    sub_type: pb.CommandSubscribe.SubType = pb.CommandSubscribe.SubType.Exclusive
    initial_position: pb.CommandSubscribe.InitialPosition = pb.CommandSubscribe.InitialPosition.Earliest
    """Where a subscription that does not exist yet begins."""
    is_durable: bool = True
    """Whether the broker keeps the position; a reader keeps its own."""
    queue_messages_max: int = QUEUE_MESSAGES_MAX
    schema: pb.Schema | None = None
    """The schema that the consumer declares."""
    bears: tuple[type[Refused], ...] = ()
    """Refusals that the consumer tolerates: it retries."""


def subscribe_command(
    topic: str, plan: SubscriptionPlan, consumer_id: int, after: Position | None, since_ms: int | None, request_id: int
) -> pb.BaseCommand:
    """SUBSCRIBE. A reader begins behind the message `after`; if `after` is before all, at the time `since_ms`."""
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
    """SEEK behind a message, or to the first message published at a time or later, in ms since the epoch."""
    if isinstance(to, int):
        return commands.seek(consumer_id, request_id, publish_time_ms=to)
    if to in (BEFORE_ALL, AFTER_ALL) or not to.is_whole_entry:
        return commands.seek(consumer_id, request_id, to=message_id(to.ledger_id, to.entry_id))
    # A broker resumes with the entry that the command names.
    return commands.seek(consumer_id, request_id, to=message_id(to.ledger_id, to.entry_id + 1))


async def last_position(connection: Connection, consumer_id: int, topic: str) -> Position | None:
    """The position of the topic's last message; None when the broker does not give it.

    Raises:
        TidewireError: the session ended, or the broker refused the request for another reason.
    """
    try:
        told = await end_of(connection, consumer_id)
    except NotAllowed as error:
        _log.info("%s does not give the position of the last message of %s: %s", connection.address, topic, error)
        return None
    return Position(*told.last)


async def end_of(connection: Connection, consumer_id: int) -> ToldEnd:
    """Where a consumer's segment ends now.

    Raises:
        TidewireError: the session ended, or the broker refused the request.
    """
    # A Tidewire broker also tells whether more may follow, if it is to measure something.
    nothing = pb.BacklogRangeRequest(after=message_id(*LATEST))
    ask = partial(commands.get_last_message_id, consumer_id, backlog_range=nothing)
    answer = await connection.request(ask, pb.CommandGetLastMessageIdResponse)
    has_acknowledged = answer.HasField("consumer_mark_delete_position")
    acknowledged = position(answer.consumer_mark_delete_position) if has_acknowledged else EARLIEST
    goes_on = answer.HasField("backlog_range") and not answer.backlog_range.is_final
    return ToldEnd(EntryPosition(*position(answer.last_message_id)), EntryPosition(*acknowledged), goes_on)
