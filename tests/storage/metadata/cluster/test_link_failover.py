"""Another process takes over while followers are linked: they go on with the successor, and nobody notices more."""

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.metadata.store import Change, Put, PutSequential, starting_with
from tests.support.led_store import led
from tests.support.linked_stores import TIMEOUT, LinkNetwork
from tests.support.reigns import leading_on, take_over_at


async def test_a_failover_ends_no_session_and_breaks_no_watch(autojump_clock: MockClock) -> None:
    """C5, M22: a write whose answer was lost is made once, and the successor answers it from the log."""
    async with (
        led() as first,
        LinkNetwork(first.reign).running() as network,
        network.follower() as store,
        store.watch_range(*starting_with("/w")) as watch,
    ):
        session = await store.open_session(TIMEOUT)
        await store.put("/e", b"", session=session)
        await watch.next()
        answers: list[str | None] = []

        async def write() -> None:
            answers.extend((await store.commit([PutSequential("/w", b"", "p")])).keys)

        async with trio.open_nursery() as nursery:
            network.lines_of("b2").to_follower.is_lost = True
            nursery.start_soon(write)
            await wait_all_tasks_blocked()
            made = [record.key for record in await first.scan(*starting_with("/w"))]
            assert len(made) == 1
            assert answers == []
            async with leading_on(first.disk, take_over_at(first.disk.process(), "b3")) as second:
                await network.fail_over(second.reign)
                network.lines_of("b2").to_follower.is_lost = False
                network.cut("b2")
                change = await watch.next()
                assert [record.key for record in change.records] == made
                await trio.sleep(3 * TIMEOUT)
                assert answers == made
                assert [record.key for record in await second.scan(*starting_with("/w"))] == made
                assert not session.has_ended
                assert await second.get("/e") is not None
                written = await store.commit([Put("/w/last", b"")])
                assert await watch.next() == Change(written.revision, tuple(await store.scan("/w/", "/w0")))
                assert store.statistics().extra["epoch"] == 2
                network.close("b2")


async def test_a_deposed_controller_answers_no_follower(autojump_clock: MockClock) -> None:
    """C3, C4: neither reads nor writes nor refusals. What was asked there is asked again at the successor."""
    async with led() as first, LinkNetwork(first.reign).running() as network, network.follower() as store:
        version = await store.put("/a", b"1")
        async with leading_on(first.disk, take_over_at(first.disk.process(), "b3")) as second:
            newer = await second.put("/a", b"2", expected=version)
            await network.fail_over(second.reign)
            # The link still leads to the deposed process, which does not know it yet.
            found = await store.get("/a")
            assert found is not None
            assert found.version == newer
            assert store.statistics().extra["links"] == 2
            assert await store.put("/a", b"3", expected=newer) > newer
            network.close("b2")
