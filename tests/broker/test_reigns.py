"""What ends a reign and what follows, on the memory store; tests/broker/test_metadata_place.py has etcd itself."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.reigns import serve_reigns
from broker.store_retry import RETRY_SECONDS
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Session, SessionLost, StoreEnded, StoreUnavailable


class Steered(MemoryStore):
    """Refuses sessions while `is_away`."""

    is_away = False

    async def open_session(self, timeout_seconds: float) -> Session:
        if self.is_away:
            raise StoreUnavailable("away")
        return await super().open_session(timeout_seconds)


class Court:
    """Records what happens in which order."""

    def __init__(self) -> None:
        self.store = Steered()
        self.stop = trio.Event()
        self.happened: list[str] = []
        self.sessions: list[Session] = []

    async def reign(self, session: Session) -> None:
        self.sessions.append(session)
        self.happened.append("reign")
        try:
            await self.stop.wait()
        finally:
            self.happened.append("over")

    async def turn_away(self) -> None:
        self.happened.append("away")
        await trio.sleep_forever()

    async def run(self, reign: Callable[[Session], Awaitable[None]] | None = None) -> None:
        first = await self.store.open_session(1)
        await serve_reigns(self.store, first, reign or self.reign, self.turn_away, self.stop, timeout_seconds=1)


async def test_a_lost_session_is_followed_by_another(autojump_clock: MockClock) -> None:
    """E14: clients are turned away for as long as there is no session, however long; then all begins anew."""
    court = Court()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(court.run)
        await wait_all_tasks_blocked()
        court.store.is_away = True
        await court.sessions[0].close()
        await trio.sleep(1_000 * RETRY_SECONDS)
        assert court.happened == ["reign", "over", "away"]
        court.store.is_away = False
        await trio.sleep(2 * RETRY_SECONDS)
        assert court.happened == ["reign", "over", "away", "reign"]
        court.stop.set()
    assert court.sessions[0].id != court.sessions[1].id


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), SessionLost("a write found it lost")])
async def test_a_task_without_an_answer_ends_the_reign_alone(autojump_clock: MockClock, error: Exception) -> None:
    """E14, E11: it goes on by a new session, behind a pause; its old claims are given up at once."""
    court = Court()
    began: list[float] = []

    async def fails(session: Session) -> None:
        began.append(trio.current_time())
        court.sessions.append(session)
        if len(began) == 2:
            court.stop.set()
            return
        async with trio.open_nursery():
            raise error

    with trio.fail_after(100):
        await court.run(fails)
    assert court.sessions[0].has_ended or isinstance(error, SessionLost)
    assert began[1] - began[0] == (RETRY_SECONDS if isinstance(error, StoreUnavailable) else 0)


async def test_a_store_that_has_ended_ends_the_broker(autojump_clock: MockClock) -> None:
    """E14, E11: this process cannot open it again; asking on would be up and serve nothing."""
    court = Court()

    async def ends(session: Session) -> None:
        court.store._end(OSError("the disk failed"))
        await trio.sleep_forever()

    with trio.fail_after(100), pytest.RaisesGroup(StoreEnded):
        await court.run(ends)


async def test_what_is_no_matter_of_the_session_comes_out(autojump_clock: MockClock) -> None:
    court = Court()

    async def fails(session: Session) -> None:
        raise ValueError("a defect")

    with pytest.RaisesGroup(ValueError, allow_unwrapped=True, flatten_subgroups=True):
        await court.run(fails)


@pytest.mark.parametrize("when", ["reign", "between"])
async def test_it_stops_when_told(autojump_clock: MockClock, when: str) -> None:
    """E14: also while there is no session to be had."""
    court = Court()
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(court.run)
            await wait_all_tasks_blocked()
            if when == "between":
                court.store.is_away = True
                await court.sessions[0].close()
                await wait_all_tasks_blocked()
            court.stop.set()


async def test_a_session_that_is_lost_while_it_stops_is_the_last_one(autojump_clock: MockClock) -> None:
    """E14: no other reign begins, and nobody is turned away by a broker that is going."""
    court = Court()

    async def stops(session: Session) -> None:
        assert not court.stop.is_set(), "another reign"
        court.stop.set()
        raise SessionLost("at the same time")

    with trio.fail_after(100):
        await court.run(stops)
    assert court.happened == []
