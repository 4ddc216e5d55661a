"""What ends the serving under a session, and what follows, with the memory store.

tests/broker/test_metadata_place.py uses a real etcd.
"""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.metadata_sessions import SESSION_RETRY_SECONDS, serve_sessions
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Session, SessionLost, StoreEnded, StoreUnavailable


class Steered(MemoryStore):
    """Refuses sessions while `is_away`."""

    is_away = False

    async def open_session(self, timeout_seconds: float) -> Session:
        if self.is_away:
            raise StoreUnavailable("away")
        return await super().open_session(timeout_seconds)


class Served:
    """Records the order of events."""

    def __init__(self) -> None:
        self.store = Steered()
        self.stop = trio.Event()
        self.happened: list[str] = []
        self.sessions: list[Session] = []

    async def serve(self, session: Session) -> None:
        self.sessions.append(session)
        self.happened.append("serving")
        try:
            await self.stop.wait()
        finally:
            self.happened.append("over")

    async def leave(self) -> None:
        self.happened.append("left")

    async def turn_away(self) -> None:
        self.happened.append("away")
        await trio.sleep_forever()

    async def run(self, serve: Callable[[Session], Awaitable[None]] | None = None) -> None:
        first = await self.store.open_session(1)
        await serve_sessions(
            self.store, first, serve or self.serve, self.leave, self.turn_away, self.stop, timeout_seconds=1
        )


async def test_a_lost_session_is_followed_by_another(autojump_clock: MockClock) -> None:
    """E14: clients are refused while there is no session, however long; then everything starts again."""
    served = Served()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.run)
        await wait_all_tasks_blocked()
        served.store.is_away = True
        await served.sessions[0].close()
        await trio.sleep(1_000 * SESSION_RETRY_SECONDS)
        assert served.happened == ["serving", "over", "left", "left", "away"]
        served.store.is_away = False
        await trio.sleep(2 * SESSION_RETRY_SECONDS)
        assert served.happened == ["serving", "over", "left", "left", "away", "serving"]
        served.stop.set()
    assert served.sessions[0].id != served.sessions[1].id


async def test_ledgers_are_left_at_the_loss_whatever_else_still_ends(autojump_clock: MockClock) -> None:
    """C12, E14: a write that waits for the store must not delay it, or others fence the journal meanwhile."""
    served = Served()

    async def slow(session: Session) -> None:
        served.sessions.append(session)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(30)
            served.happened.append("over")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.run, slow)
        await wait_all_tasks_blocked()
        served.store.is_away = True
        lost = trio.current_time()
        await served.sessions[0].close()
        await wait_all_tasks_blocked()
        assert served.happened == ["left"]
        assert trio.current_time() == lost
        await trio.sleep(31)
        # Again, for what was made meanwhile.
        assert served.happened == ["left", "over", "left", "away"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), SessionLost("a write found it lost")])
async def test_a_task_without_an_answer_ends_the_session_alone(autojump_clock: MockClock, error: Exception) -> None:
    """E14, E11: it continues with a new session after a pause, and gives up its old claims at once."""
    served = Served()
    began: list[float] = []

    async def fails(session: Session) -> None:
        began.append(trio.current_time())
        served.sessions.append(session)
        if len(began) == 2:
            served.stop.set()
            return
        async with trio.open_nursery():
            raise error

    with trio.fail_after(100):
        await served.run(fails)
    assert served.sessions[0].has_ended or isinstance(error, SessionLost)
    assert began[1] - began[0] == (SESSION_RETRY_SECONDS if isinstance(error, StoreUnavailable) else 0)


async def test_a_store_that_has_ended_ends_the_broker(autojump_clock: MockClock) -> None:
    """E14, E11: this process cannot open the store again; if it continued, it would run and serve nothing."""
    served = Served()

    async def ends(session: Session) -> None:
        served.store._end(OSError("the disk failed"))
        await trio.sleep_forever()

    with trio.fail_after(100), pytest.RaisesGroup(StoreEnded):
        await served.run(ends)


async def test_what_is_no_matter_of_the_session_comes_out(autojump_clock: MockClock) -> None:
    served = Served()

    async def fails(session: Session) -> None:
        raise ValueError("a defect")

    with pytest.RaisesGroup(ValueError, allow_unwrapped=True, flatten_subgroups=True):
        await served.run(fails)


@pytest.mark.parametrize("when", ["serving", "between"])
async def test_it_stops_when_told(autojump_clock: MockClock, when: str) -> None:
    """E14: this includes the time without a session."""
    served = Served()
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.run)
            await wait_all_tasks_blocked()
            if when == "between":
                served.store.is_away = True
                await served.sessions[0].close()
                await wait_all_tasks_blocked()
            served.stop.set()


async def test_a_session_that_is_lost_while_it_stops_is_the_last_one(autojump_clock: MockClock) -> None:
    """E14: no other session begins, and a stopping broker refuses no clients."""
    served = Served()

    async def stops(session: Session) -> None:
        assert not served.stop.is_set(), "another session"
        served.stop.set()
        raise SessionLost("at the same time")

    with trio.fail_after(100):
        await served.run(stops)
    assert served.happened == []
