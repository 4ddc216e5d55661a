"""Several processes on one data folder: who decides, who follows, and what a fail-over costs."""

from contextlib import AbstractAsyncContextManager
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.files import AlreadyLocked, DiskFull
from storage.metadata.cluster.roles import Role
from storage.metadata.cluster.shared_store import SharedStore
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.store import Put, PutSequential, StoreEnded, StoreUnavailable, starting_with
from tests.support.disk import SimulatedFiles
from tests.support.metadata_log import DATA, DIRECTORY
from tests.support.shared_stores import TIMEOUT, MemoryListener, brokers


async def test_the_first_process_leads_and_the_next_one_follows(autojump_clock: MockClock) -> None:
    """M17: both read what either wrote, and sessions of both are on record."""
    async with brokers() as them:
        first, second = await them.start("b1"), await them.start("b2")
        assert (first.role, second.role) == (Role.LEADING, Role.FOLLOWING)
        version = await second.put("/a", b"1")
        assert (await first.fresh(["/a"])).records["/a"] == await second.get("/a")
        await first.put("/a", b"2", expected=version)
        found = await second.get("/a")
        assert found is not None
        assert found.value == b"2"
        session = await first.open_session(10)
        await first.commit([Put("/e", b"", session=session)])
        assert await second.get("/e") is not None
        await session.close()
        assert await second.get("/e") is None


@pytest.mark.parametrize("name", ["b1", "b2"])
async def test_a_write_that_no_caller_waits_for_shares_the_group_of_the_next(
    name: str, autojump_clock: MockClock
) -> None:
    """M22: at the controller and at a follower. It holds back nothing that comes behind it."""
    async with brokers() as them, trio.open_nursery() as nursery:
        stores = {each: await them.start(each) for each in ("b1", "b2")}
        await stores[name].put("/first", b"")
        point = stores["b1"].statistics().extra["log_batches"]
        nursery.start_soon(stores[name].commit_along, [Put("/along", b"")])
        await wait_all_tasks_blocked()
        assert stores["b1"].peek("/along") is None
        await stores[name].put("/next", b"")
        assert await stores[name].get("/along") is not None
        assert stores["b1"].statistics().extra["log_batches"] == point + 1


async def test_followers_go_on_when_the_controller_closes(autojump_clock: MockClock) -> None:
    """C5: their sessions, watches and records outlive the fail-over."""
    async with brokers() as them:
        _first, second, third = [await them.start(name) for name in ("b1", "b2", "b3")]
        await second.put("/w/1", b"")
        async with second.watch_range(*starting_with("/w")) as watch:
            await watch.next()
            session = await second.open_session(10)
            await second.commit([Put("/e", b"", session=session)])
            await them.close("b1")
            await third.put("/w/2", b"")
            change = await watch.next()
            assert [record.key for record in change.records] == ["/w/2"]
            await trio.sleep(3 * TIMEOUT)
            assert not session.has_ended
            assert await third.get("/e") is not None
            assert sorted(store.role.value for store in (second, third)) == ["following", "leading"]
            assert second.statistics().extra["epoch"] == third.statistics().extra["epoch"]


async def test_a_killed_controllers_session_ends_and_the_others_live(autojump_clock: MockClock) -> None:
    """C5, C12: a follower takes over at once, as the lock is free. A full timeout later the dead one's session ends."""
    async with brokers() as them:
        first, second, third = [await them.start(name) for name in ("b1", "b2", "b3")]
        lost = await first.open_session(TIMEOUT)
        await first.commit([Put("/lost", b"", session=lost)])
        kept = await second.open_session(TIMEOUT)
        await second.commit([Put("/kept", b"", session=kept)])
        killed_at = trio.current_time()
        await them.kill("b1")
        await third.put("/after", b"")
        assert trio.current_time() - killed_at < 1
        assert await third.get("/lost") is not None
        await trio.sleep(TIMEOUT + 2)
        assert await third.get("/lost") is None
        assert not kept.has_ended
        assert await third.get("/kept") is not None


async def test_everybody_knows_who_the_controller_is(autojump_clock: MockClock) -> None:
    """C5: also that nobody is, between two of them. Whoever listens is told of each change."""
    async with brokers() as them:
        first, second, third = [await them.start(name) for name in ("b1", "b2", "b3")]
        assert (first.controller, second.controller, third.controller) == ("b1", "b1", "b1")
        seen: list[str | None] = []
        with second.telling_controller(lambda: seen.append(second.controller)):
            await them.kill("b1")
            await third.put("/after", b"")
            await second.get("/after")
        assert seen[0] == ""
        assert seen[-1] == second.controller == third.controller
        assert second.controller in {"b2", "b3"}
        told = len(seen)
        await them.kill(seen[-1] or "")
        await (third if seen[-1] == "b2" else second).put("/behind", b"")
        assert len(seen) == told, "nobody listens any more"


async def test_a_stopped_controller_is_deposed_and_follows(autojump_clock: MockClock) -> None:
    """C5, C12, M22: what it was writing is made once. It follows when it goes on."""
    async with brokers() as them:
        first, second = await them.start("b1"), await them.start("b2")
        own = await second.open_session(TIMEOUT)
        await second.commit([Put("/mine", b"", session=own)])
        async with trio.open_nursery() as nursery:
            them.files["b1"].stop()
            nursery.start_soon(first.commit, [PutSequential("/stopped", b"", "p")])
            await them.until("b2", Role.LEADING)
            await second.put("/a", b"2")
            them.files["b1"].resume()
            await them.until("b1", Role.FOLLOWING)
        assert await first.get("/a") is not None
        assert len(await second.scan(*starting_with("/stopped"))) == 1
        await trio.sleep(3 * TIMEOUT)
        assert not own.has_ended
        assert await first.get("/mine") is not None


async def test_a_zombie_answers_no_read_from_its_image(autojump_clock: MockClock) -> None:
    """C4: it does not know yet that it was deposed. The read waits until it follows."""
    async with brokers() as them:
        first, second = await them.start("b1"), await them.start("b2")
        await first.put("/a", b"1")
        them.files["b1"].stop()
        await them.until("b2", Role.LEADING)
        await second.put("/a", b"2")
        assert first.role is Role.LEADING
        with trio.move_on_after(5) as waited:
            await first.get("/a")
        assert waited.cancelled_caught
        them.files["b1"].resume()
        found = await first.get("/a")
        assert found is not None
        assert found.value == b"2"


async def test_a_deposed_controller_goes_on_from_where_it_was(autojump_clock: MockClock) -> None:
    """C5: its own session lives while it reigns and after, and its watches see each change once, in order."""
    async with brokers() as them:
        first, second = await them.start("b1"), await them.start("b2")
        session = await first.open_session(TIMEOUT)
        await first.commit([Put("/e", b"", session=session)])
        await trio.sleep(3 * TIMEOUT)
        assert not session.has_ended
        assert await second.get("/e") is not None
        await first.put("/w/1", b"")
        async with first.watch_range(*starting_with("/w")) as watch:
            await watch.next()
            them.files["b1"].stop()
            await them.until("b2", Role.LEADING)
            them.files["b1"].resume()
            await them.until("b1", Role.FOLLOWING)
            written = await second.commit([Put("/w/2", b"")])
            change = await watch.next()
            assert change.revision == written.revision
            assert [record.key for record in change.records] == ["/w/2"]
            assert not session.has_ended
            assert await second.get("/e") is not None


async def test_a_cut_link_makes_no_epoch(autojump_clock: MockClock) -> None:
    """C13: while the controller's beat moves, a broker that cannot reach it only seeks, and loses its session."""
    async with brokers() as them:
        first, second = await them.start("b1"), await them.start("b2")
        session = await second.open_session(TIMEOUT)
        await second.commit([Put("/e", b"", session=session)])
        await them.cut("b2")
        await trio.sleep(2 * TIMEOUT)
        assert second.role is Role.SEEKING
        assert session.has_ended
        assert await first.get("/e") is None
        with pytest.raises(StoreUnavailable):
            await second.get("/e")
        them.mend("b2")
        await them.until("b2", Role.FOLLOWING)
        assert await second.get("/e") is None
        assert first.statistics().extra["epoch"] == 1


@pytest.mark.parametrize("lost", [("b1", "b2"), ("b2", "b1")], ids=["controller to broker", "broker to controller"])
async def test_a_link_that_works_one_way_ends_the_session_at_its_holder_first(
    lost: tuple[str, str], autojump_clock: MockClock
) -> None:
    """C13: and it makes no epoch. When both ways work again, the broker follows again."""
    async with brokers() as them:
        first, second, third = [await them.start(name) for name in ("b1", "b2", "b3")]
        session = await second.open_session(TIMEOUT)
        await second.commit([Put("/e", b"", session=session)])
        begun = trio.current_time()
        them.lost.add(lost)
        async with third.watch_key("/e") as watch:
            assert await watch.next() is not None
            assert await watch.next() is None
        assert session.has_ended
        assert TIMEOUT / 2 < trio.current_time() - begun < 2 * TIMEOUT
        assert first.role is Role.LEADING
        them.lost.clear()
        await them.until("b2", Role.FOLLOWING)
        again = await second.open_session(TIMEOUT)
        await second.commit([Put("/e", b"", session=again)])
        await trio.sleep(2 * TIMEOUT)
        assert not again.has_ended
        assert first.statistics().extra["epoch"] == 1


async def test_a_store_without_a_controller_closes_at_once(autojump_clock: MockClock) -> None:
    """M18: its sessions end by their timeout."""
    async with brokers() as them:
        first, second = await them.start("b1"), await them.start("b2")
        session = await second.open_session(TIMEOUT)
        await second.commit([Put("/e", b"", session=session)])
        await them.cut("b2")
        await them.until("b2", Role.SEEKING)
        begun = trio.current_time()
        await them.close("b2")
        assert trio.current_time() - begun < 0.5
        with pytest.raises(StoreEnded):
            await second.get("/e")
        await trio.sleep(2 * TIMEOUT)
        assert await first.get("/e") is None


@pytest.mark.parametrize("name", ["b1", "b2"], ids=["leading", "following"])
async def test_a_cancelled_owner_still_makes_its_last_writes(name: str, autojump_clock: MockClock) -> None:
    """M18: the store plays its role while its owner is cancelled and cleans up. Then it ends its sessions."""
    async with brokers() as them:
        stores = {each: await them.start(each) for each in ("b1", "b2")}
        own = await stores[name].open_session(TIMEOUT)
        await stores[name].commit([Put("/e", b"", session=own)])
        other = stores["b2" if name == "b1" else "b1"]

        async def clean_up() -> None:
            await stores[name].put("/last", b"")

        await them.cancel(name, clean_up)
        begun = trio.current_time()
        assert await other.get("/last") is not None
        assert await other.get("/e") is None
        assert trio.current_time() - begun < 1


@pytest.mark.parametrize("seed", range(8))
async def test_a_standby_that_reaches_nobody_takes_over_from_a_stopped_controller(
    seed: int, autojump_clock: MockClock
) -> None:
    """C13: its connection is refused in the same moment in which it sees that the beat stood still."""
    async with brokers(seed=seed) as them:
        await them.start("b1")
        second = await them.start("b2")
        await them.cut("b2")
        await trio.sleep(1)
        them.files["b1"].stop()
        await them.until("b2", Role.LEADING)
        await second.put("/a", b"")


async def test_a_full_disk_lets_a_standby_wait_and_makes_no_epoch(autojump_clock: MockClock) -> None:
    """C24: when there is space again, it takes over."""
    async with brokers() as them:
        await them.start("b1")
        second = await them.start("b2")
        await second.put("/a", b"")
        them.disk.set_capacity(0)
        await them.kill("b1")
        await trio.sleep(TIMEOUT)
        assert second.role in {Role.SEEKING, Role.TAKING_OVER}
        assert [name for name in them.disk.names(DIRECTORY) if name.startswith("fence-")] == ["fence-0000000001"]
        them.disk.set_capacity(None)
        await them.until("b2", Role.LEADING)
        assert await second.get("/a") is not None


@pytest.mark.parametrize("is_new", [True, False], ids=["a new folder", "a stopped cluster"])
async def test_a_start_on_a_full_disk_is_refused(is_new: bool, autojump_clock: MockClock) -> None:
    """C24, E13: nobody waits for a broker that was not there before, so it says at once what is wrong."""
    async with brokers() as them:
        if not is_new:
            await them.start("b1")
            await them.close("b1")
        them.disk.set_capacity(0)
        with pytest.raises(DiskFull):
            async with _opened(them.disk.process()):
                pass
        them.disk.set_capacity(None)
        store = await them.start("b2")
        await store.put("/a", b"")


async def test_damage_is_believed_at_the_second_look(autojump_clock: MockClock) -> None:
    """E3: a start on a damaged log is refused, and says where the damage is."""
    async with brokers() as them:
        first = await them.start("b1")
        await first.put("/a", bytes(5000))
        await first.put("/b", b"")
        await them.close("b1")
        (name,) = [name for name in them.disk.names(DIRECTORY) if name.endswith(".log")]
        them.disk.open(DIRECTORY / name).write_at(600, b"damage")
        with pytest.raises(CorruptMetadata):
            async with _opened(them.disk.process()):
                pass


async def test_a_folder_is_shared_or_for_one_process(autojump_clock: MockClock) -> None:
    """C22: a broker without an internal address, and an offline tool, are refused while others share the folder."""
    async with brokers() as them:
        await them.start("b1")
        with pytest.raises(AlreadyLocked):
            async with EmbeddedStore.open(them.disk.process(), DATA):
                pass


def _opened(files: SimulatedFiles) -> AbstractAsyncContextManager[SharedStore]:
    return SharedStore.open_shared(
        files,
        DATA,
        [MemoryListener(files)],
        broker="b2",
        address="b2",
        connect=_refuse,
        timeout=TIMEOUT,
        random=Random(1),
    )


async def _refuse(address: str) -> trio.abc.Stream:
    raise ConnectionRefusedError(address)
