"""Sessions over links: when they live, when they end at the controller, and that they end at the follower before."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.metadata.cluster.deadlines import beat_seconds, silence_seconds
from storage.metadata.cluster.link_streams import LinkLost
from storage.metadata.proposed import OpenSession
from storage.metadata.store import Put, Session, SessionLost
from tests.support.led_store import LedStore, led
from tests.support.linked_stores import TIMEOUT, LinkedStore, LinkNetwork

SILENCE_MAX = silence_seconds(TIMEOUT) * 1.25


class Ends:
    """When a session ended in the two processes."""

    def __init__(self, reign: LedStore, session: Session) -> None:
        self._reign = reign
        self._session = session
        self.at_follower = float("inf")
        self.at_controller = float("inf")

    async def watch_follower(self) -> None:
        """Note when its own process takes it for ended."""
        await self._session.wait_lost()
        self.at_follower = trio.current_time()

    async def watch_controller(self) -> None:
        """Note when its record goes."""
        async with self._reign.watch_key("/e") as watch:
            while await watch.next() is not None:
                pass
        self.at_controller = trio.current_time()


async def open_with_record(store: LinkedStore, timeout: float = TIMEOUT) -> Session:
    """Open a session that has a record."""
    session = await store.open_session(timeout)
    await store.put("/e", b"", session=session)
    return session


@pytest.mark.parametrize("are_lost", [(True, False), (False, True), (True, True)])
async def test_a_cut_in_either_direction_ends_the_session_at_the_follower_first(
    are_lost: tuple[bool, bool], autojump_clock: MockClock
) -> None:
    """C13, C5: a broker that gets no pushes, or cannot be heard, loses its sessions; before others see that."""
    async with (
        led() as reign,
        LinkNetwork(reign.reign).running() as network,
        network.follower() as store,
        trio.open_nursery() as nursery,
    ):
        lines = network.lines_of("b2")
        lines.to_follower.delay = lines.to_controller.delay = 0.01
        ends = Ends(reign, session := await open_with_record(store))
        nursery.start_soon(ends.watch_follower)
        nursery.start_soon(ends.watch_controller)
        await trio.sleep(5 * TIMEOUT)
        began = trio.current_time()
        lines.to_follower.is_lost, lines.to_controller.is_lost = are_lost
        await trio.sleep(3 * TIMEOUT)
        assert session.has_ended
        assert began < ends.at_follower < ends.at_controller
        # The token that is under way when the cut begins may be echoed. The stall of a look adds at most a beat each.
        assert ends.at_controller - began < TIMEOUT + 3 * beat_seconds(TIMEOUT)
        assert isinstance(network.ended[0], LinkLost)
        assert "silent" in str(network.ended[0])
        lines.to_follower.is_lost = lines.to_controller.is_lost = False
        again = await open_with_record(store)
        assert again.id != session.id
        with pytest.raises(SessionLost):
            await store.put("/other", b"", session=session)
        nursery.cancel_scope.cancel()


async def test_a_follower_notices_silence_well_before_its_sessions_end(autojump_clock: MockClock) -> None:
    """C5, C13: a link that carries nothing is given up in time for the next one to keep the sessions."""
    async with led() as reign, LinkNetwork(reign.reign).running() as network, network.follower() as store:
        session = await open_with_record(store)
        network.lines_of("b2").to_controller.is_lost = True
        began = trio.current_time()
        await network.until_ended(1)
        assert trio.current_time() - began <= SILENCE_MAX + beat_seconds(TIMEOUT) < TIMEOUT / 2
        network.lines_of("b2").to_controller.is_lost = False
        await trio.sleep(5 * TIMEOUT)
        assert not session.has_ended
        assert await reign.get("/e") is not None
        assert store.statistics().extra["links"] == 2


async def test_one_cut_link_makes_one_new_link(autojump_clock: MockClock) -> None:
    """C13, C5: sessions, watches and the identity of the writer stay."""
    async with led() as reign, LinkNetwork(reign.reign).running() as network, network.follower() as store:
        session = await open_with_record(store)
        for _ in range(5):
            network.cut("b2")
            await trio.sleep(1)
            await store.put("/a", b"")
        await trio.sleep(2 * TIMEOUT)
        assert not session.has_ended
        assert store.statistics().extra["links"] == 6
        assert len(reign.image.sessions) == 2


async def test_a_session_that_its_process_gave_up_ends_although_the_link_comes_back(autojump_clock: MockClock) -> None:
    """C13, E14: otherwise the next links would keep it, and its records, for as long as the process lives."""
    async with led() as reign, LinkNetwork(reign.reign).running() as network, network.follower() as store:
        session = await open_with_record(store, timeout=4)
        lines = network.lines_of("b2")
        network.close("b2")
        await session.wait_lost()
        assert await reign.get("/e") is not None, "the controller gives it a little longer"
        lines.opened.set()
        await store.barrier()
        await trio.sleep(1)
        assert await reign.get("/e") is None
        assert len(reign.image.sessions) == 1, "the link's own"


async def test_all_sessions_of_a_store_end_with_its_link_session(autojump_clock: MockClock) -> None:
    """C13, M18: no session of a process stays that the process takes for ended, whatever timeout it asked for."""
    async with led() as reign, LinkNetwork(reign.reign).running() as network, network.follower() as store:
        session = await open_with_record(store, timeout=100)
        other = await store.open_session(3)
        lines = network.lines_of("b2")
        network.close("b2")
        await other.wait_lost()
        assert not session.has_ended
        await session.wait_lost()
        assert await reign.get("/e") is not None
        await trio.sleep(3)
        assert not reign.image.sessions
        lines.opened.set()
        await open_with_record(store)
        assert len(reign.image.sessions) == 2


async def test_a_process_that_was_stopped_knows_that_its_session_may_have_ended(autojump_clock: MockClock) -> None:
    """C13: it looks at the clock, so there is no moment in which it acts on a session that others saw end."""
    async with led() as reign, LinkNetwork(reign.reign).running() as network, network.follower() as store:
        session = await open_with_record(store)
        autojump_clock.jump(3 * TIMEOUT)
        assert session.has_ended
        await session.wait_lost()
        await trio.sleep(1)
        assert await reign.get("/e") is None, "its process had the controller end it"


async def test_leaving_ends_the_sessions_at_once(autojump_clock: MockClock) -> None:
    """E14: a store that is closed in order leaves no session to time out, its link's neither."""
    async with led() as reign, LinkNetwork(reign.reign).running() as network:
        async with network.follower() as store:
            await open_with_record(store)
            await store.open_session(3)
        assert not reign.image.sessions
        assert await reign.get("/e") is None
        assert trio.current_time() == pytest.approx(0, abs=1)
        await trio.sleep(5)
        assert network.server.peers == 0


async def test_an_abandoned_opening_leaves_no_session(autojump_clock: MockClock) -> None:
    """M18, E14: a caller that is cancelled while the controller opens its session leaves none behind."""
    async with led() as reign, LinkNetwork(reign.reign).running() as network, network.follower() as store:
        network.lines_of("b2").to_follower.gate = gate = trio.Event()
        with trio.move_on_after(1):
            await store.open_session(5)
        assert len(reign.image.sessions) == 2
        gate.set()
        network.lines_of("b2").to_follower.gate = None
        await store.barrier()
        await trio.sleep(1)
        assert len(reign.image.sessions) == 1


async def test_a_predecessors_sessions_have_their_full_timeout(autojump_clock: MockClock) -> None:
    """C5: a new reign begins with every session on record, and ends those whose process does not come."""
    async with led() as reign:
        opened = await reign.reign.propose(OpenSession(round(TIMEOUT * 1000), "b9", nonce=7))
        await reign.reign.propose(OpenSession(1000, nonce=7))
        await trio.sleep(100)
        async with LinkNetwork(reign.reign).running():
            await trio.sleep(TIMEOUT - 0.5)
            assert list(reign.image.sessions) == [opened.revision]
            await trio.sleep(2)
            assert not reign.image.sessions


async def test_an_ephemeral_write_over_the_link_keeps_its_session(autojump_clock: MockClock) -> None:
    """M19: records of a session of another broker go with it."""
    async with (
        led() as reign,
        LinkNetwork(reign.reign).running() as network,
        network.follower() as store,
        network.follower("b3") as other,
    ):
        session = await store.open_session(5)
        await store.commit([Put("/e/1", b"", session=session), Put("/e/2", b"", session=session)])
        assert len(await other.scan("/e/", "/e0")) == 2
        await session.close()
        assert await other.scan("/e/", "/e0") == []


async def test_a_follower_ends_the_session_of_another_broker(autojump_clock: MockClock) -> None:
    """M18, C21: at once, by its number. Nobody waits for its timeout."""
    async with (
        led() as reign,
        LinkNetwork(reign.reign).running() as network,
        network.follower("b2") as dead,
        network.follower("b3") as store,
    ):
        session = await open_with_record(dead, 60)
        began = trio.current_time()
        for _ in range(2):
            await store.end_session(session.id)
            assert store.peek("/e") is None
        await session.wait_lost()
        assert trio.current_time() - began < 1


async def test_a_session_counts_from_when_its_opening_was_sent(autojump_clock: MockClock) -> None:
    """C5: a session that was asked for in a long outage is not overdue when it is opened."""
    async with led() as reign, LinkNetwork(reign.reign).running() as network, network.follower() as store:
        network.close("b2")
        network.lines_of("b2").to_controller.delay = 0.5
        sessions: list[Session] = []

        async def open_session() -> None:
            sessions.append(await store.open_session(TIMEOUT))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_session)
            await trio.sleep(1.5 * TIMEOUT)
            network.lines_of("b2").opened.set()
        await trio.sleep(2 * TIMEOUT)
        assert not sessions[0].has_ended


async def test_an_opening_that_is_cancelled_before_a_token_came_leaves_no_session(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M18, E14: the link's session is as old as an outage, so its opener waits for the proof that both live."""
    async with led() as reign, LinkNetwork(reign.reign).running() as network, network.follower() as store:
        lines = network.lines_of("b2")
        lines.to_controller.delay = 0.5
        lines.to_follower.is_lost = True
        opening, is_open = trio.CancelScope(), trio.Event()
        propose = store._writer.open_session

        async def noted(proposed: OpenSession) -> tuple[int, float]:
            opened = await propose(proposed)
            is_open.set()
            return opened

        monkeypatch.setattr(store._writer, "open_session", noted)

        async def open_session() -> None:
            with opening:
                await store.open_session(TIMEOUT)

        async with trio.open_nursery() as nursery:
            # The controller ends the first session of the link, and HELLOs open another one. The follower counts it
            # from the first HELLO.
            await trio.sleep(1.4 * TIMEOUT)
            nursery.start_soon(open_session)
            lines.to_follower.is_lost = False
            with trio.fail_after(TIMEOUT):
                await is_open.wait()
            await wait_all_tasks_blocked()
            assert store._following.proven, "it waits for the token"
            assert len(reign.image.sessions) == 2
            opening.cancel()
        assert opening.cancelled_caught
        await trio.sleep(2)
        assert list(reign.image.sessions) == [store._following.session]


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
async def test_a_young_session_ends_at_its_holder_with_the_session_of_its_link(
    part: float, autojump_clock: MockClock
) -> None:
    """C13: the controller ends both together, and the link's was last renewed before the other one was opened."""
    async with (
        led() as reign,
        LinkNetwork(reign.reign).running() as network,
        network.follower() as store,
        trio.open_nursery() as nursery,
    ):
        await trio.sleep(beat_seconds(TIMEOUT) * (5 + part))
        ends = Ends(reign, await open_with_record(store))
        nursery.start_soon(ends.watch_follower)
        nursery.start_soon(ends.watch_controller)
        lines = network.lines_of("b2")
        lines.to_follower.is_lost = lines.to_controller.is_lost = True
        await trio.sleep(3 * TIMEOUT)
        assert ends.at_follower <= ends.at_controller
        nursery.cancel_scope.cancel()
