"""What a view of the console shows, kept up to date while somebody looks at it.

A feed is made of named parts. Its stream sends all parts at first, and then those that changed. If changes come faster
than the pause between two frames, the latest state is sent and the states between are not. So a slow reader costs no
memory, and a burst costs few frames. The pause begins with a frame, so the first change after a quiet time is sent at
once, and a quiet feed costs nothing.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final, Protocol

import orjson
import trio

from broker.http.lines import Follower, NextLines, PushedLines, running
from storage.metadata.store import Change, MetadataStore, RangeWatch, starting_with
from storage.signal import Signal

PAUSE_SECONDS: Final = 0.25
"""The least time between two frames of a stream."""

HEARD_AT_ONCE: Final = 100
"""Records that a hearer takes in one step of the event loop (E7). A view begins with all that there are."""

Parts = Mapping[str, object]
"""JSON values by name."""

Heard = tuple[str, Callable[[Change], None]]
"""A key prefix, and what takes the changes below it. A large change comes in pieces."""


class Feed(Follower, Protocol):
    """See the module's docstring. Use `parts` only while `run` runs."""

    changed: Signal
    """Set when a part may have changed."""

    def parts(self) -> Parts:
        """Return all parts as of now."""


async def follow(
    store: MetadataStore, heard: Sequence[Heard], changed: Signal, *, task_status: trio.TaskStatus[None]
) -> None:
    """Follow records until cancelled. It reports as started once every hearer knows the existing ones.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    async with AsyncExitStack() as stack:
        watches = [
            (await stack.enter_async_context(store.watch_range(*starting_with(prefix))), hear) for prefix, hear in heard
        ]
        nursery = await stack.enter_async_context(trio.open_nursery())
        for watch, hear in watches:
            await _tell(await watch.next(), hear)
        task_status.started()

        async def hear_all(watch: RangeWatch, hear: Callable[[Change], None]) -> None:
            async for change in watch:
                await _tell(change, hear)
                changed.set()

        for watch, hear in watches:
            nursery.start_soon(hear_all, watch, hear)


async def _tell(change: Change, hear: Callable[[Change], None]) -> None:
    hear(replace(change, records=change.records[:HEARD_AT_ONCE]))
    for start in range(HEARD_AT_ONCE, len(change.records), HEARD_AT_ONCE):
        await trio.lowlevel.checkpoint()
        hear(Change(change.revision, change.records[start : start + HEARD_AT_ONCE]))


@asynccontextmanager
async def frames(
    feed: Feed, frame: Callable[[Parts], bytes], pause_seconds: float = PAUSE_SECONDS
) -> AsyncIterator[NextLines]:
    """Run a feed, for `PushedLines`: its parts at first, then those that changed."""
    sent: dict[str, object] | None = None
    async with running(feed):

        async def next_lines() -> Iterable[bytes]:
            nonlocal sent
            while True:
                if sent is not None:
                    await trio.sleep(pause_seconds)
                    await feed.changed.wait()
                now = dict(feed.parts())
                before = sent or {}
                sent = now
                new = {name: value for name, value in now.items() if name not in before or before[name] != value}
                if new or not before:
                    return [frame(new)]

        yield next_lines


def event(parts: Parts) -> bytes:
    """Return parts as a server-sent event, with the time of the broker's monotonic clock in ms.

    The parts hold counters. Whoever shows a rate computes it from two counts and their times. No frame means no change.
    """
    return b"data: " + orjson.dumps({"at": round(trio.current_time() * 1000), **parts}) + b"\n\n"


class Events(PushedLines):
    """A stream of server-sent events."""

    media_type = "text/event-stream"

    @staticmethod
    def failure(reason: str) -> bytes:
        """See `PushedLines`."""
        return event({"failed": reason})
