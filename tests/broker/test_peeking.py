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
from tests.broker.kafka.test_hidden_backlogs import PLAIN, Writer
from tests.broker.test_topic_source import without_aborted_index
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS
from tests.support.rooms import TOPIC, publish, rooms, visible
from txn.errors import OwnershipLost
from txn.states import EndAction

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


async def paged(topic: Topic, count: int, *, backwards: bool) -> list[Row]:
    """All rows of a log, page by page."""
    rows: list[Row] = []
    asked = Asked(count=count) if backwards else replace(FORWARDS, count=count)
    while True:
        page = await shown(topic, asked)
        if backwards:
            rows[:0] = page.rows
            if not page.has_older:
                return rows
            asked = Asked(before=page.start, count=count)
        else:
            rows += page.rows
            if not page.has_newer:
                return rows
            asked = Asked(start=page.end, count=count)


@pytest.mark.parametrize("seed", range(4))
async def test_pages_of_any_size_show_the_same_both_ways_and_agree_with_readers(seed: int) -> None:
    """K5, K22: drawn batches of numbered producers, in transactions that commit, abort or stay open, over ledgers."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=seed)) as broker:
        topic = await broker.topics.get(PLAIN)
        writer = Writer(seed)
        await writer.write(topic, 60)
        whole = await paged(topic, 1_000, backwards=False)
        for count in (1, 3, 7, 50):
            for backwards in (False, True):
                assert await paged(topic, count, backwards=backwards) == whole
        indexes = [row.index for row in whole if row.messages and row.index is not None]
        assert indexes == sorted(set(indexes))
        by_state: dict[State, set[Position]] = {state: set() for state in State}
        for row in whole:
            by_state[row.state].add(row.position)
        seen = {entry.position for entry in await visible(topic)}
        readable = topic.readable.value
        assert seen == {place for place in by_state[State.COMMITTED] if place <= readable}
        assert all(place > readable for place in by_state[State.OPEN])
        assert bool(by_state[State.OPEN]) == bool(writer.open)
        await writer.end_all(topic)
        decided = await paged(topic, 1_000, backwards=True)
        assert State.OPEN not in {row.state for row in decided}
        seen = {entry.position for entry in await visible(topic)}
        assert seen == {row.position for row in decided if row.state is State.COMMITTED}


async def test_the_next_owner_knows_what_became_of_each_message() -> None:
    """T25: also of transactions whose records were removed, and of those that are still open."""
    files, metadata = SimulatedFiles(), MemoryStore()
    states = []
    for _ in range(2):
        async with rooms(metadata, files) as broker:
            if not await broker.layouts.names():
                await broker.controller.create_topic(TOPIC, 1, {})
                topic = await broker.topics.get(await broker.segment(TOPIC, 0))
                for action in (EndAction.ABORT, EndAction.COMMIT, None):
                    txn = await broker.coordinator.new_transaction(0, 900_000)
                    await publish(topic, b"x", txn)
                    if action is not None:
                        await broker.coordinator.end(txn, action)
                    topic.ledger.request_roll()
                    await wait_all_tasks_blocked()
            topic = await broker.topics.get(await broker.segment(TOPIC, 0))
            states.append([row.state for row in (await shown(topic, FORWARDS)).rows])
    assert states == 2 * [[State.ABORTED, State.COMMITTED, State.OPEN]]
