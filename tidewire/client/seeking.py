"""Moving a subscription: the place on each segment, and the SEEK to each segment's broker.

A move goes segment by segment, over the consumers' own sessions. A SEEK names an absolute place, so it can be repeated,
and a lost connection is a reason to repeat it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, TypeAlias

import anyio

from tidewire.client.network import Network
from tidewire.client.topic_consumer import TopicConsumer
from tidewire.protocol.errors import TidewireError, fresh
from tidewire.protocol.layout import Layout, ancestors
from tidewire.protocol.positions import AFTER_ALL, BEFORE_ALL, MessageId, Position

SeekTarget: TypeAlias = Literal["earliest", "latest"] | MessageId | datetime
"""Before everything stored, behind everything stored, behind a message, or at the first one published since a time."""

Place: TypeAlias = Position | int
"""Behind a message of one segment; or at the first one published since a time, in milliseconds since the epoch."""


def milliseconds_of(moment: datetime) -> int:
    """The moment in milliseconds since the epoch.

    Raises:
        ValueError: the moment has no time zone, or is before the epoch.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone; give the datetime a tzinfo")
    since_epoch_ms = int(moment.timestamp() * 1000)
    if since_epoch_ms < 0:
        raise ValueError(f"{moment} is before 1970-01-01 UTC")
    return since_epoch_ms


def place_of(to: Literal["earliest", "latest"] | datetime) -> Place:
    """The place that `to` means on every segment.

    Raises:
        ValueError: `to` is none of the three.
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

    A message id holds places of some segments. Their ancestors go behind everything, and all others go to the start.

    Raises:
        ValueError: `to` is none of the four.
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
    """Move each consumer's segment to its place, all at once.

    `consumers` may change meanwhile. A segment that has left it, because it was pruned, needs no move.

    Raises:
        TidewireError: the first failure, after all have ended.
    """
    errors: list[TidewireError] = []

    async def seek(segment_id: int, consumer: TopicConsumer, place: Place) -> None:
        def has_left() -> bool:
            return consumers.get(segment_id) is not consumer

        async def move() -> None:
            if not has_left():
                await consumer.seek(place)

        try:
            await network.persistently(move, f"moving a subscription of {topic}")
        except TidewireError as error:
            if not has_left():
                errors.append(error)

    async with anyio.create_task_group() as tasks:
        for segment_id, place in places.items():
            consumer = consumers.get(segment_id)
            if consumer is not None:
                tasks.start_soon(seek, segment_id, consumer, place)
    if errors:
        raise fresh(errors[0])
