"""A store that follows: what it shows, when, and what it costs others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.metadata import delta, image_store, transactions, watches
from storage.metadata.batches import BEGINNING
from storage.metadata.cluster import image_transfer, pushing, received_log, writer
from storage.metadata.cluster.barriers import ANSWER_SECONDS_MAX
from storage.metadata.cluster.deadlines import silence_seconds
from storage.metadata.cluster.messages import ImagePart, PushedBatch
from storage.metadata.cluster.received_log import CannotFollow
from storage.metadata.store import (
    Change,
    ChangeSetTooLarge,
    Conflict,
    DeleteRange,
    IndexEntry,
    Op,
    Put,
    PutSequential,
    Record,
    StoreEnded,
    StoreUnavailable,
    exactly,
    starting_with,
)
from tests.support.led_store import LedStore, led
from tests.support.linked_stores import TIMEOUT, LinkedStore, LinkNetwork
from tests.support.schedules import every_schedule

LARGE: list[Op] = [Put(f"/large/{number:04d}", bytes(100)) for number in range(500)]


@asynccontextmanager
async def joined() -> AsyncIterator[tuple[LedStore, LinkNetwork, LinkedStore]]:
    """A controller and a follower with a link."""
    async with led() as reign, LinkNetwork(reign.reign).running() as network, network.follower() as store:
        yield reign, network, store


async def listed(store: LinkedStore | LedStore) -> list[Record]:
    """Return all records."""
    return await store.scan("", "\U0010ffff")


async def test_watches_outlive_their_link(autojump_clock: MockClock) -> None:
    """C5, M14: while the link is away they show nothing, and afterwards everything, once and in order."""
    async with joined() as (reign, network, store), store.watch_range(*starting_with("/w/")) as watch:
        async with store.watch_key("/w/1") as key_watch:
            revision = await store.barrier()
            assert await watch.next() == Change(revision)
            assert await key_watch.next() is None
            network.close("b2")
            revisions = [await reign.put(f"/w/{number}", b"") for number in range(3)]
            await wait_all_tasks_blocked()
            assert store.peek("/w/1") is None
            network.lines_of("b2").opened.set()
            for number, revision in enumerate(revisions):
                assert await watch.next() == Change(revision, (Record(f"/w/{number}", b"", revision),))
            found = await key_watch.next()
            assert found is not None
            assert found.version == revisions[1]
        assert store.statistics().extra["images"] == 0


async def test_an_image_comes_as_one_difference(autojump_clock: MockClock) -> None:
    """C5, M14, M15: a follower that was away for too long sees one change with what differs; nothing is read anew."""
    async with joined() as (reign, network, store), store.watch_range(*starting_with("/w/")) as watch:
        for number in range(20):
            await reign.put(f"/w/{number:02d}", b"old", indexes=(IndexEntry("i", "old"),))
        mine = await store.open_session(5)
        theirs = await reign.open_session(5)
        await store.put("/w/mine", b"", session=mine)
        await reign.put("/w/theirs", b"", session=theirs)
        before = await listed(store)
        first = await watch.next()
        while len(first.records) < len(before):
            following = await watch.next()
            first = Change(following.revision, (*first.records, *following.records))
        network.close("b2")
        reign.ring_bytes = 0
        await theirs.close()
        await reign.commit([DeleteRange("/w/03", "/w/06")])
        await reign.put("/w/10", b"new", indexes=(IndexEntry("i", "new"),))
        await reign.put("/w/05", b"again")
        await reign.commit([PutSequential("/n", b"", "p")])
        lasting = await reign.put("/w/zz", b"")
        network.lines_of("b2").opened.set()
        assert await listed(store) == await listed(reign)
        change = await watch.next()
        assert [record.key for record in change.records] == ["/w/05", "/w/10", "/w/zz"]
        assert change.deleted == ("/w/03", "/w/04", "/w/theirs")
        assert change.revision == lasting
        assert not mine.has_ended
        assert [hit.record.key for hit in await store.query("i", *exactly("new"))] == ["/w/10"]
        assert store.statistics().extra["images"] == 1
        # The state beside the records came too, so the next batches fit.
        keys = (await store.commit([PutSequential("/n", b"", "p")])).keys
        assert keys == (f"/n-{2:020d}",)
        await mine.close()
        assert (await watch.next()).deleted == ("/w/mine",)
        assert await listed(store) == await listed(reign)


async def test_a_lost_image_begins_again(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: parts of an image whose link was lost are forgotten. A record may be gone when the next image comes."""
    monkeypatch.setattr(image_transfer, "SLICE_RECORDS_MAX", 2)
    async with led() as reign, LinkNetwork(reign.reign).running() as network:
        reign.ring_bytes = 0
        for number in range(9):
            await reign.put(f"/a/{number}", b"")
        network.lines_of("b2").to_follower.cuts = [4, 6]
        async with network.follower() as store:
            await network.until_ended(1)
            await reign.delete("/a/0")
            assert await listed(store) == await listed(reign)
            assert store.statistics().extra["images"] == 1
            network.close("b2")
            await reign.put("/a/1", b"new")
            await reign.put("/a/3", b"new")
            await reign.commit([DeleteRange("/a/6", "/a/8")])
            network.lines_of("b2").to_follower.cuts = [3, 5]
            network.lines_of("b2").opened.set()
            await network.until_ended(3)
            await reign.delete("/a/1")
            assert await listed(store) == await listed(reign)
            assert store.statistics().extra["images"] == 2


@every_schedule(examples_max=30)
async def test_a_refused_writer_finds_why(autojump_clock: MockClock) -> None:
    """C6, M4: when the conflict is told, its own image holds the version that was in the way."""
    conflicts = 0

    async def count_up(store: LinkedStore) -> None:
        nonlocal conflicts
        for _ in range(5):
            while not await put_next(store):
                conflicts += 1

    async def put_next(store: LinkedStore) -> bool:
        found = store.peek("/counter")
        version, value = (found.version, int(found.value)) if found else (0, 0)
        try:
            await store.put("/counter", b"%d" % (value + 1), expected=version)
        except Conflict as conflict:
            actual = conflict.actual
        else:
            return True
        seen = store.peek("/counter")
        assert seen is not None
        assert seen.version >= actual
        return False

    async with joined() as (reign, network, store), network.follower("b3") as other:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count_up, store)
            nursery.start_soon(count_up, other)
        found = await reign.get("/counter")
        assert found is not None
        assert found.value == b"10"
        assert conflicts <= 10, "one for each write of the other at most"


async def test_reads_share_questions(autojump_clock: MockClock) -> None:
    """M2, E7: a hundred readers cost two questions, and each sees what was answered before it asked."""
    async with joined() as (reign, network, store):
        before = store.statistics().extra["barriers"]
        seen: list[bytes | None] = []

        async def read() -> None:
            found = await store.get("/a")
            seen.append(None if found is None else found.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            network.lines_of("b2").to_follower.delay = 0.1
            for _ in range(100):
                nursery.start_soon(read)
        await reign.put("/a", b"1")
        await read()
        assert seen[-1] == b"1"
        assert store.statistics().extra["barriers"] - before <= 4


async def test_a_stopped_follower_holds_up_nobody(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """M17: its link ends once too much waits for it. It comes back for the log, or for the image."""
    monkeypatch.setattr(pushing, "QUEUED_BYTES_MAX", 20_000)
    async with joined() as (reign, network, store), network.follower("b3") as other:
        line = network.lines_of("b2").to_follower
        line.gate = gate = trio.Event()
        for number in range(100):
            await reign.put(f"/a/{number}", bytes(1000))
            assert await other.get(f"/a/{number}") is not None
        assert trio.current_time() < 1
        await wait_all_tasks_blocked()
        assert network.server.links == 1
        line.gate = None
        gate.set()
        assert await listed(store) == await listed(reign)
        assert network.server.links == 2


async def test_a_large_change_set_is_shown_at_its_end(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R16, R14: a follower keeps the pieces, and shows nothing of them before the end, whoever wrote it."""
    monkeypatch.setattr(transactions, "PIECE_BYTES_MAX", 8 * 1024)
    monkeypatch.setattr(pushing, "SENT_AT_ONCE", 1)
    async with joined() as (reign, network, store), store.watch_range(*starting_with("/large/")) as watch:
        await watch.next()
        line = network.lines_of("b2").to_follower
        line.delay = 0.1
        began = len(line.seen)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reign.commit, LARGE)
            await trio.sleep(0.55)
            assert sum(isinstance(frame.message, PushedBatch) for frame in line.seen[began:]) > 2
            assert store.peek("/large/0000") is None
            place = store.statistics().extra["log_batches"]
            # The link is lost in the middle. The pieces come again.
            network.cut("b2")
            assert store.statistics().extra["log_batches"] == place
        line.delay = 0
        change = await watch.next()
        assert len(change.records) == len(LARGE)
        written = await store.commit([DeleteRange(*starting_with("/large/"))])
        assert await watch.next() == Change(
            written.revision, (), tuple(sorted(record.key for record in change.records))
        )


@every_schedule(examples_max=30, cut=st.integers(0, 40))
async def test_large_change_sets_and_images_in_small_steps(cut: int, autojump_clock: MockClock) -> None:
    """R16, E7: shown with pauses, readers of the follower see all of a change set or nothing of it."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (delta, image_store, watches, image_transfer, received_log):
            patch.setattr(module, "KEYS_AT_ONCE", 16)
        patch.setattr(image_transfer, "SLICE_RECORDS_MAX", 16)
        async with joined() as (reign, network, store), trio.open_nursery() as nursery:
            counts: set[int] = set()

            async def look() -> None:
                while True:
                    counts.add(len(await store.scan(*starting_with("/large/"))))

            nursery.start_soon(look)
            network.lines_of("b2").to_follower.cuts = [cut]
            await store.commit(LARGE)
            await reign.commit([DeleteRange(*starting_with("/large/"))])
            reign.ring_bytes = 0
            network.cut("b2")
            await reign.commit(LARGE)
            assert len(await store.scan(*starting_with("/large/"))) == len(LARGE)
            nursery.cancel_scope.cancel()
        assert counts <= {0, len(LARGE)}


async def test_no_controller_for_too_long(autojump_clock: MockClock) -> None:
    """M22, E5: calls wait for the next link; after 20 s they say what is known of their write."""
    async with joined() as (reign, network, store):
        await store.put("/a", b"1")
        line = network.lines_of("b2").to_controller
        line.is_lost = True
        began = trio.current_time()
        for ask in (lambda: store.put("/a", b"2"), lambda: store.get("/a"), lambda: store.fresh(["/a"])):
            asked = trio.current_time()
            with pytest.raises(StoreUnavailable):
                await ask()
            assert trio.current_time() - asked == pytest.approx(ANSWER_SECONDS_MAX)
        assert store.peek("/a") is not None
        network.close("b2")
        line.is_lost = False
        with pytest.raises(StoreUnavailable, match="not made"):
            await store.put("/a", b"3")
        assert trio.current_time() > began
        network.lines_of("b2").opened.set()
        found = await store.get("/a")
        assert found is not None
        assert found.value == b"1", "no write that its caller was told of as unknown is made long after"
        assert await reign.get("/a") == found


async def test_calls_wait_for_the_next_link(autojump_clock: MockClock) -> None:
    """C5: an outage that is shorter than 20 s costs its time and nothing else."""
    async with joined() as (_reign, network, store):
        network.close("b2")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.put, "/a", b"1")
            nursery.start_soon(store.barrier)
            nursery.start_soon(store.open_session, 5)
            await trio.sleep(ANSWER_SECONDS_MAX - 1)
            network.lines_of("b2").opened.set()
        assert await store.get("/a") is not None


async def test_a_change_set_that_no_controller_takes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M25, E8: it is refused before anything is sent."""
    async with joined() as (_reign, network, store):
        line = network.lines_of("b2").to_controller
        sent = len(line.seen)
        with pytest.raises(ChangeSetTooLarge):
            await store.commit([Put(f"/{number}", bytes(1000 * 1000)) for number in range(70)])
        assert len(line.seen) == sent
        # Several that fit one by one wait for each other.
        monkeypatch.setattr(writer, "CHANGE_SET_BYTES_MAX", 3000)
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(store.put, f"/b/{number}", bytes(1000))
        assert len(await store.scan(*starting_with("/b/"))) == 10


async def test_a_store_whose_image_is_a_fork_ends(autojump_clock: MockClock) -> None:
    """C2, E3: it shows nothing more, and every caller learns why."""
    async with joined() as (reign, network, store):
        await store.put("/a", b"1")
        network.close("b2")
        async with led() as other, LinkNetwork(other.reign).running() as another:
            with pytest.raises(CannotFollow):
                await store.follow(another.connect(another.lines_of("b2")), another.epoch)
        with pytest.raises(StoreEnded):
            await store.get("/a")
        with pytest.raises(StoreEnded):
            await store.put("/a", b"2")
        del reign


async def test_an_image_keeps_sessions_alive_while_it_comes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: a transfer that takes longer than the session timeout is no silence, as long as it goes on."""
    monkeypatch.setattr(image_transfer, "SLICE_RECORDS_MAX", 1)
    async with joined() as (reign, network, store):
        session = await store.open_session(5)
        await store.put("/e", b"", session=session)
        network.close("b2")
        reign.ring_bytes = 0
        for number in range(100):
            await reign.put(f"/a/{number:02d}", b"")
        line = network.lines_of("b2").to_follower
        line.delay = 0.4
        network.lines_of("b2").opened.set()
        began = trio.current_time()
        assert sum(isinstance(frame.message, ImagePart) for frame in line.seen) == 0
        with pytest.raises(StoreUnavailable):
            await store.barrier()
        await trio.sleep(3 * TIMEOUT)
        await store.barrier()
        assert trio.current_time() - began > 3 * TIMEOUT
        assert not session.has_ended
        assert await reign.get("/e") is not None
        assert [str(error) for error in network.ended if "silent" in str(error)] == []


async def test_showing_is_no_silence(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """E7, C5: a follower that is busy with what it has received does not take its controller for silent."""
    async with joined() as (reign, network, store):
        show = store.show
        seconds = 2 * silence_seconds(TIMEOUT)

        async def show_slowly(*arguments: object) -> None:
            await trio.sleep(seconds)
            await show(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "show", show_slowly)
        await reign.put("/a", b"")
        assert await store.get("/a") is not None
        assert network.ended == []


async def test_statistics(autojump_clock: MockClock) -> None:
    """E12: what the links did, for metrics."""
    async with joined() as (reign, network, store):
        await store.put("/a", b"")
        network.cut("b2")
        await store.put("/a", b"")
        found = store.statistics()
        assert (found.revision, found.records, found.writes_waiting) == (reign.image.revision, 1, 0)
        assert found.extra["links"] == 2
        assert found.extra["epoch"] == reign.reign.epoch
        assert found.extra["log_batches"] == reign.point.sequence > BEGINNING.sequence
