"""Whether a sealed segment is drained, if that is unknown at first."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from broker.cluster.ownership import OwnedElsewhere
from broker.errors import TopicClosed, TopicNotFound
from broker.names import TopicName
from broker.scalable.draining import follow_drained
from broker.topic import Topic
from storage.cursor import CursorClosed, CursorFailed, CursorLost
from storage.errors import (
    CursorCorrupt,
    Fenced,
    JournalContended,
    LedgerCorrupt,
    LedgerNotMade,
    LedgerOutOfReach,
    NoSpace,
    WriterAlive,
)
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check, StoreFull, StoreUnavailable
from storage.position import EARLIEST
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, rooms
from txn.errors import OwnershipLost


def _unanswered() -> Exception:
    error = TopicClosed("no longer served here")
    error.__cause__ = StoreUnavailable("no answer")
    return error


PASSING: list[Callable[[], Exception]] = [
    _unanswered,
    lambda: StoreUnavailable("no answer"),
    lambda: OwnedElsewhere("name", "two", "pulsar://two:1"),
]
LASTING: list[Callable[[], Exception]] = [
    lambda: TopicNotFound("gone"),
    lambda: LedgerCorrupt(Path("l"), 1, "a flipped bit"),
]


async def told(error: Exception, monkeypatch: pytest.MonkeyPatch) -> tuple[list[bool], bool]:
    """Return the reports about a drained segment that is readable at the second attempt, and whether the call ended."""
    tellings: list[bool] = []
    async with rooms(MemoryStore(), SimulatedFiles(seed=5)) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        name = await broker.segment(TOPIC, 0)
        topic = await broker.topics.get(name)
        await topic.subscribe("s", EARLIEST)
        await topic.seal()
        get, is_first = broker.topics.get, True

        async def get_later(asked: TopicName, *, creates: bool = True) -> Topic:
            nonlocal is_first
            if is_first:
                is_first = False
                raise error
            return await get(asked, creates=creates)

        monkeypatch.setattr(broker.topics, "get", get_later)
        with trio.move_on_after(60) as watching:
            await follow_drained(name, "s", tellings.append, topics=broker.topics, metadata=broker.metadata)
    return tellings, not watching.cancelled_caught


@pytest.mark.parametrize("error", PASSING, ids=["closed", "unanswered", "elsewhere"])
async def test_a_segment_that_cannot_be_had_at_the_moment_is_asked_for_again(
    error: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """E11, D11: otherwise its children would wait forever."""
    assert await told(error(), monkeypatch) == ([False, True], False)


@pytest.mark.parametrize("error", LASTING, ids=["gone", "damaged"])
async def test_a_segment_that_is_not_to_be_had_is_not_drained(
    error: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """E11: it is not retried again and again."""
    assert await told(error(), monkeypatch) == ([False], True)


_WRITER = Writer("folder", "two", 1, 7)


@pytest.mark.parametrize(
    ("error", "is_drained"),
    [
        (NoSpace("the disk is full"), True),
        (LedgerNotMade("the disk refused a file"), True),
        (WriterAlive(_WRITER), True),
        (LedgerOutOfReach(_WRITER, "another folder", Path("/data")), True),
        (JournalContended("two"), True),
        (Fenced("changed by another owner"), True),
        (CursorLost("another owner"), True),
        (CursorFailed("not written"), True),
        (CursorClosed("unloaded"), True),
        (OwnershipLost("taken over"), True),
        (StoreFull("the disk is full"), True),
        (OSError("the disk cannot be read"), True),
        (LedgerCorrupt(Path("l"), 1, "a flipped bit"), False),
        (CursorCorrupt("a flipped bit"), False),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_segment_that_cannot_be_opened_is_opened_later_if_that_can_pass(
    error: Exception, is_drained: bool, autojump_clock: MockClock
) -> None:
    """E11, E13: a full disk and a running writer are transient, so the children only wait; damage is permanent."""
    tellings: list[bool] = []
    async with rooms(MemoryStore(), SimulatedFiles(seed=5)) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        name = await broker.segment(TOPIC, 0)
        topic = await broker.topics.get(name)
        await topic.subscribe("s", EARLIEST)
        await topic.seal()
        await broker.topics.unload(name)
        open_topic, is_first = broker.topics._open_topic, True

        async def open_later(asked: TopicName, claim: Check) -> Topic:
            nonlocal is_first
            if is_first:
                is_first = False
                raise error
            return await open_topic(asked, claim)

        broker.topics._open_topic = open_later
        with trio.move_on_after(60):
            await follow_drained(name, "s", tellings.append, topics=broker.topics, metadata=broker.metadata)
    assert tellings == [False, is_drained][: 1 + is_drained]
