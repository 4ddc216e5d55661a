"""What a peek shows of a log with damage, and of a segment that was pruned."""

from dataclasses import replace

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.cluster.ownership import claim_key
from broker.contents import Content
from broker.errors import TopicNotFound
from broker.layouts.layout import Layout
from broker.peek_contract import Asked, Page, Place, Row, State
from broker.peeking import peek
from broker.topic import Topic
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Delete
from storage.position import EARLIEST, Position
from tests.broker.test_topic_source import without_aborted_index
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS
from tests.support.rooms import TOPIC, publish, rooms
from txn.errors import OwnershipLost

FORWARDS = Asked(start=Place(EARLIEST))


async def shown(topic: Topic, asked: Asked) -> Page:
    async def undecoded(row: Row, _content: Content) -> Row:
        return row

    return await peek(topic, asked, undecoded)


@pytest.mark.parametrize("asked", [FORWARDS, Asked()])
async def test_entries_of_unknown_fate_are_told_as_damaged(asked: Asked) -> None:
    """E3: unknown is never shown as committed."""
    async with without_aborted_index() as topic:
        page = await shown(topic, asked)
        assert [row.state for row in page.rows] == ["committed", "committed", "damaged", "committed"]
        assert page.rows[2].content is None
        assert ".aborted-" in str(page.rows[2].problem)


@pytest.mark.parametrize("count", [1, 2, 20])
async def test_a_ledger_that_is_lost_is_one_row_and_the_page_goes_on_behind_it(count: int) -> None:
    """E3, E10: forwards; backwards each entry has its row."""
    files, metadata = SimulatedFiles(), MemoryStore()
    async with rooms(metadata, files) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        name = await broker.segment(TOPIC, 0)
        topic = await broker.topics.get(name)
        for number in range(6):
            await publish(topic, b"%d" % number)
            if number % 2:
                topic.ledger.request_roll()
                await wait_all_tasks_blocked()
        await topic.seal()
        lost = topic.ledger.closed[1].id
    for file in files.names(LEDGERS):
        if file.startswith(f"{lost:020}") or file == f"{lost}.ledger":
            files.remove(LEDGERS / file)
    async with rooms(metadata, files) as broker:
        topic = await broker.topics.get(name)
        states: list[State] = []
        asked = replace(FORWARDS, count=count)
        while True:
            page = await shown(topic, asked)
            states += [row.state for row in page.rows]
            damaged = [(row.position, row.last) for row in page.rows if row.state is State.DAMAGED]
            assert damaged in ([], [(Position(lost, 0), Position(lost, 1))])
            if not page.has_newer:
                break
            asked = Asked(start=page.end, count=count)
        whole, gone = [State.COMMITTED] * 2, [State.DAMAGED]
        assert states == whole + gone + whole
        states, asked = [], Asked(count=count)
        while True:
            page = await shown(topic, asked)
            states = [row.state for row in page.rows] + states
            if not page.has_older:
                break
            asked = Asked(before=page.start, count=count)
        assert states == whole + 2 * gone + whole


async def test_a_pruned_segment_says_that_its_messages_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rooms(MemoryStore(), SimulatedFiles()) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        name = await broker.segment(TOPIC, 0)
        await broker.controller.split(TOPIC, 0)
        await publish(await broker.topics.get(await broker.segment(TOPIC, 1)), b"x")
        pruned = (await broker.layouts.get(TOPIC)).prune(0)

        async def get(_name: object) -> Layout:
            return pruned

        monkeypatch.setattr(broker.layouts, "get", get)
        with pytest.raises(TopicNotFound, match="was pruned: every subscription had all of it"):
            await broker.administration.messages.page(name, Asked())


async def test_a_broker_that_lost_its_claim_shows_nothing() -> None:
    """D4: another broker may have decided and written since."""
    metadata = MemoryStore()
    async with rooms(metadata, SimulatedFiles()) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        name = await broker.segment(TOPIC, 0)
        topic = await broker.topics.get(name)
        await publish(topic, b"x")
        assert len((await shown(topic, FORWARDS)).rows) == 1
        await metadata.commit([Delete(claim_key(str(name)))])
        with pytest.raises(OwnershipLost):
            await shown(topic, FORWARDS)
