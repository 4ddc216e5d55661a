"""Moves a subscription within its backlog: past messages, past old ones, or to a message or a time.

A skip goes forward, and keeps what was acknowledged above its end. Consumers stay connected. A seek goes anywhere, and
begins afresh: the subscription forgets what was acknowledged, and its consumers subscribe again. Both are Pulsar's.

Messages are counted as in `msgBacklog`: an entry counts as one, however many messages its batch has. Entries that
nobody gets do not count. These are the markers of transactions and what was aborted.
"""

from typing import Final

import trio

from broker.regular_contract import MessagePlace
from broker.topic import Topic
from dispatch.subscription import Subscription
from storage.position import Position
from storage.ranges import EntryAck

READ_ENTRIES_MAX: Final = 256
READ_BYTES_MAX: Final = 1024 * 1024


async def skip_messages(topic: Topic, subscription: Subscription, count: int) -> None:
    """Pass the first `count` messages that are not acknowledged; fewer, if there are not so many. Durable on return.

    Raises:
        LedgerCorrupt: the search met damage. Nothing was skipped.
        CursorError: the subscription has ended.
    """
    await subscription.skip(await _end_of(topic, subscription, count))


async def skip_older(topic: Topic, subscription: Subscription, age_seconds: int) -> None:
    """Pass all messages that were published longer ago than that. Durable on return.

    Raises:
        EntriesUnreadable: the search met damage. Nothing was skipped.
        CursorError: the subscription has ended.
    """
    first_kept = await topic.ledger.position_of_age(age_seconds * 1000)
    await subscription.skip(first_kept.before())


async def skip_to(subscription: Subscription, place: MessagePlace) -> None:
    """Pass everything up to the message at `place`, and itself unless it is excluded. Durable on return.

    Raises:
        CursorError: the subscription has ended.
    """
    await subscription.skip(place.position.before() if place.is_excluded else place.position)


async def seek_to_time(topic: Topic, subscription: Subscription, timestamp_ms: int) -> None:
    """Go on with the first message published at this time or later. Durable on return.

    Raises:
        EntriesUnreadable: the search met damage. Nothing was changed.
        CursorError: the subscription has ended.
    """
    place = await topic.ledger.position_at_time(timestamp_ms)
    await topic.seek(subscription, place.before())


async def seek_to_message(topic: Topic, subscription: Subscription, place: MessagePlace) -> None:
    """Go on with the message at `place`, or with the next one if it is excluded. Durable on return.

    Raises:
        LedgerCorrupt: the entry with the message is damaged. Nothing was changed.
        CursorError: the subscription has ended.
    """
    partly = await _left_out(topic, place)
    begins_behind = place.is_end or (place.is_excluded and partly is None)
    await topic.seek(subscription, place.position if begins_behind else place.position.before(), partly)


async def _end_of(topic: Topic, subscription: Subscription, count: int) -> Position:
    """Return the position of the last one of the first `count` messages that are not acknowledged."""
    cursor = subscription.cursor
    end, left = cursor.mark_delete, count
    position = cursor.first_unacknowledged()
    while left and position <= topic.readable.value:
        entries = await topic.read(position, entries_max=READ_ENTRIES_MAX, bytes_max=READ_BYTES_MAX)
        if not entries:
            break
        for entry in entries:
            if topic.is_visible(entry) and not cursor.is_acknowledged(entry.position):
                end = entry.position
                left -= 1
                if not left:
                    break
        position = cursor.next_unacknowledged(entries[-1].position)
        # Reads from memory do not pause, and other tasks must not wait.
        await trio.lowlevel.checkpoint()
    return end


async def _left_out(topic: Topic, place: MessagePlace) -> EntryAck | None:
    """Return the messages of a batch that are before `place`; None if the place is at an end of the entry."""
    if place.is_end or place.batch_index < 0:
        return None
    entries = await topic.ledger.read(place.position, upto=place.position, entries_max=1, bytes_max=1)
    size = entries[0].message_count if entries else 0
    passed = place.batch_index + place.is_excluded
    if not 0 < passed < size:
        return None
    return EntryAck(place.position, ((1 << size) - 1) & ~((1 << passed) - 1), size)
