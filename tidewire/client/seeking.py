"""Moving a subscription to another place: what the place is on each segment, and telling each segment's broker.

A move is told segment by segment, over the consumers' own sessions. Each of them may be told more than once, since it
says where to be and not how far to go; so a lost connection is a reason to tell it again.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Literal, TypeAlias

import anyio

from tidewire.client.network import Network
from tidewire.client.topic_consumer import TopicConsumer
from tidewire.protocol.errors import TidewireError, fresh
from tidewire.protocol.layout import Layout, ancestors
from tidewire.protocol.positions import AFTER_ALL, BEFORE_ALL, MessageId, Position

SeekTarget: TypeAlias = Literal["earliest", "latest"] | MessageId | datetime
"""Before all there is, behind all there is, behind a message, or at the first message that came at a time."""

Place: TypeAlias = Position | int
"""Behind a message of one segment; or at the first that came at a time, in milliseconds since the epoch."""


def milliseconds_of(moment: datetime) -> int:
    """Since the epoch.

    Raises:
        ValueError: it does not say in which time zone it is meant, or is before the epoch.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    since_epoch_ms = int(moment.timestamp() * 1000)
    if since_epoch_ms < 0:
        raise ValueError(f"{moment} is before 1970")
    return since_epoch_ms


def place_of(to: Literal["earliest", "latest"] | datetime) -> Place:
    """The place that is the same on every segment.

    Raises:
        ValueError: it is none of the three.
    """
    if to == "earliest":
        return BEFORE_ALL
    if to == "latest":
        return AFTER_ALL
    if isinstance(to, datetime):
        return milliseconds_of(to)
    raise ValueError(f"seek to 'earliest', 'latest', a message id or a time, not to {to!r}")


def places_of(layout: Layout, to: SeekTarget) -> dict[int, Place]:
    """Where to go on each segment of the layout.

    Behind a message: on segments that it says nothing of, behind all if they came before those that it does, and
    before all otherwise.

    Raises:
        ValueError: it is none of the four.
    """
    if not isinstance(to, MessageId):
        return dict.fromkeys(layout.segments, place_of(to))
    vector = to.vector()
    finished = ancestors(vector, layout.segments)
    return {
        segment_id: vector.get(segment_id, AFTER_ALL if segment_id in finished else BEFORE_ALL)
        for segment_id in layout.segments
    }


async def seek_all(
    network: Network, consumers: Mapping[int, TopicConsumer], places: Mapping[int, Place], topic: str
) -> None:
    """Move each consumer's segment to its place, all at a time.

    Raises:
        TidewireError: the first failure, when all are through.
    """
    errors: list[TidewireError] = []

    async def seek(consumer: TopicConsumer, place: Place) -> None:
        try:
            await network.persistently(partial(consumer.seek, place), f"moving a subscription of {topic}")
        except TidewireError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        for segment_id, place in places.items():
            consumer = consumers.get(segment_id)
            if consumer is not None:
                tasks.start_soon(seek, consumer, place)
    if errors:
        raise fresh(errors[0])
