"""A follower's writes: their numbers, their order, and what is sent again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.metadata.cluster import arrivals, ops_codec, writer
from storage.metadata.cluster.answers import Conflicted
from storage.metadata.cluster.arrivals import Arrivals, Verdict
from storage.metadata.cluster.barriers import ANSWER_SECONDS_MAX
from storage.metadata.cluster.messages import End, Open, Write
from storage.metadata.cluster.proposals import Told
from storage.metadata.cluster.writer import Writer
from storage.metadata.outcomes import Made, Outcomes, WriteId
from storage.metadata.proposed import Commit, EndSessions, OpenSession, Proposed
from storage.metadata.store import Conflict, Put, StoreEnded, StoreFull, StoreUnavailable
from tests.support.schedules import every_schedule


def put(key: str, size: int = 1) -> Commit:
    """A change set of about this size."""
    return Commit((Put(key, bytes(size)),), size)


class Link:
    """What a writer has sent over one link."""

    def __init__(self) -> None:
        self.sent: list[Write | Open | End] = []
        self.scope = trio.CancelScope()

    @property
    def numbers(self) -> list[int]:
        """The numbers of what was sent."""
        return [message.number for message in self.sent]

    async def send(self, message: Write | Open | End) -> None:
        """Note a message."""
        self.sent.append(message)
        await trio.lowlevel.checkpoint()

    async def run(self, writes: Writer, session: int) -> None:
        """Send until the link is cut."""
        with self.scope:
            await writes.send(session, self.send)


@asynccontextmanager
async def linked(writes: Writer, session: int = 1) -> AsyncIterator[Link]:
    """A link, on which everything that waits was sent."""
    link = Link()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, writes, session)
        await wait_all_tasks_blocked()
        yield link
        link.scope.cancel()


class UndecidedReign:
    """The reign of this process, whose committer has not come to its writes yet."""

    def __init__(self) -> None:
        self.told: list[Told] = []

    async def submit(self, _proposed: Proposed, _write: WriteId, told: Told) -> None:
        """See `Decides.submit`."""
        self.told.append(told)
        await trio.lowlevel.checkpoint()

    async def propose_along(self, _proposed: Proposed, _write: WriteId) -> Made | None:
        """See `Decides.propose_along`."""
        await trio.sleep_forever()


class Asked:
    """A proposal, and what became of it."""

    def __init__(self, writes: Writer, proposed: Proposed, nursery: trio.Nursery) -> None:
        self.made: Made | None = None
        self.error: Exception | None = None
        self.scope = trio.CancelScope()
        nursery.start_soon(self._run, writes, proposed)

    async def _run(self, writes: Writer, proposed: Proposed) -> None:
        with self.scope:
            try:
                self.made = await writes.propose(proposed)
            except (Conflict, StoreUnavailable) as error:
                self.error = error


async def test_what_has_no_answer_is_sent_again_in_order(autojump_clock: MockClock) -> None:
    """M22: with the same numbers, on each new link of the same session."""
    writes = Writer()
    async with trio.open_nursery() as nursery:
        asked = []
        for key in "abc":
            asked.append(Asked(writes, put(key), nursery))
            await wait_all_tasks_blocked()
        async with linked(writes) as link:
            assert link.numbers == [1, 2, 3]
            writes.answered(2, Made(9))
            writes.answered(2, Conflicted("b", 1, 2))
        async with linked(writes) as link:
            assert link.numbers == [1, 3]
            assert writes.repeated == 2
            writes.answered(1, Conflicted("a", 1, 2))
            writes.answered(3, Made(10))
            await wait_all_tasks_blocked()
            assert [each.made for each in asked] == [None, Made(9), Made(10)]
            assert isinstance(asked[0].error, Conflict)
            asked.append(Asked(writes, put("d"), nursery))
            await wait_all_tasks_blocked()
            assert link.sent[-1].answered_below == link.sent[-1].number == 4
            writes.answered(4, Made(11))


async def test_an_outcome_of_an_earlier_session_answers_nothing(autojump_clock: MockClock) -> None:
    """M22: this process was the controller under that session. Its numbers have begun again since."""
    writes = Writer()
    reign = UndecidedReign()
    async with trio.open_nursery() as nursery:
        sent = Asked(writes, put("a"), nursery)
        async with trio.open_nursery() as leading:
            leading.start_soon(writes.decide, 1, reign)
            await wait_all_tasks_blocked()
            leading.cancel_scope.cancel()
        later = Asked(writes, put("b"), nursery)
        await wait_all_tasks_blocked()
        async with linked(writes, session=5) as link:
            assert link.numbers == [1]
            (told,) = reign.told
            told(Made(9))
            await wait_all_tasks_blocked()
            before = later.made
            writes.answered(1, Made(12))
    assert (before, later.made) == (None, Made(12))
    assert isinstance(sent.error, StoreUnavailable)


async def test_an_opening_counts_from_its_first_sending(autojump_clock: MockClock) -> None:
    """C13: the controller may have opened the session then, so the session may end there by that time."""
    writes = Writer()
    opened: list[tuple[int, float]] = []

    async def open_session() -> None:
        opened.append(await writes.open_session(OpenSession(3000)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_session)
        await trio.sleep(1)
        sent_at = trio.current_time()
        async with linked(writes):
            pass
        await trio.sleep(1)
        async with linked(writes):
            writes.answered(1, Made(7))
    assert opened == [(7, sent_at)]


async def test_another_session_is_another_writer(autojump_clock: MockClock) -> None:
    """M22: what was sent under the earlier session is unknown; what was not is numbered anew."""
    writes = Writer()
    async with trio.open_nursery() as nursery:
        sent = Asked(writes, put("a"), nursery)
        await wait_all_tasks_blocked()
        async with linked(writes, session=1):
            pass
        waiting = Asked(writes, put("b"), nursery)
        await wait_all_tasks_blocked()
        async with linked(writes, session=5) as link:
            assert link.numbers == [1]
            assert isinstance(link.sent[0], Write)
            assert ops_codec.decode_part(link.sent[0].ops) == [Put("b", bytes(1))]
            writes.answered(1, Made(3))
            await wait_all_tasks_blocked()
            assert waiting.made == Made(3)
            assert "unknown" in str(sent.error)


async def test_another_writer_ends_the_sessions_too(autojump_clock: MockClock) -> None:
    """M18: nobody knows whether the end was made, and to end a session twice does no harm."""
    writes = Writer()
    async with trio.open_nursery() as nursery:
        ends, puts = Asked(writes, EndSessions((5,)), nursery), Asked(writes, put("a"), nursery)
        async with linked(writes, session=1) as link:
            assert sorted(link.numbers) == [1, 2]
        async with linked(writes, session=2) as link:
            assert [message for message in link.sent if isinstance(message, End)] == link.sent
            writes.answered(1, Made(9))
            await wait_all_tasks_blocked()
    assert (ends.made, ends.error) == (Made(9), None)
    assert isinstance(puts.error, StoreUnavailable)


async def test_a_full_disk_of_this_process_is_a_refusal(autojump_clock: MockClock) -> None:
    """C24: it is definite, although the store may be unavailable for other reasons."""
    writes, reign = Writer(), UndecidedReign()
    async with trio.open_nursery() as nursery:
        asked = Asked(writes, put("a"), nursery)
        nursery.start_soon(writes.decide, 1, reign)
        await wait_all_tasks_blocked()
        (told,) = reign.told
        told(StoreFull("the disk is full"))
        await wait_all_tasks_blocked()
        assert isinstance(asked.error, StoreFull)
        nursery.cancel_scope.cancel()


async def test_whose_caller_is_gone(autojump_clock: MockClock) -> None:
    """M22: a change set that was not sent is taken back. One that was is not sent again."""
    writes = Writer()
    async with trio.open_nursery() as nursery:
        first, second = Asked(writes, put("a"), nursery), Asked(writes, put("b"), nursery)
        await wait_all_tasks_blocked()
        first.scope.cancel()
        await wait_all_tasks_blocked()
        async with linked(writes) as link:
            assert len(link.sent) == 1
            assert link.sent[0].answered_below == link.sent[0].number
            second.scope.cancel()
        async with linked(writes) as link:
            assert link.sent == []
            assert len(writes) == 0


async def test_no_session_is_left_without_an_owner(autojump_clock: MockClock) -> None:
    """E14: an opening whose caller is gone is seen to its end, and then that session is ended, also on later links."""
    writes = Writer()
    async with trio.open_nursery() as nursery:
        asked = Asked(writes, OpenSession(1000), nursery)
        async with linked(writes) as link:
            assert link.sent == [Open(1, 1, 1000)]
            asked.scope.cancel()
        async with linked(writes) as link:
            assert link.sent == [Open(1, 1, 1000)]
            writes.answered(1, Made(77))
            await wait_all_tasks_blocked()
            assert link.sent[1:] == [End(2, 2, EndSessions((77,)))]
        async with linked(writes) as link:
            assert link.sent == [End(2, 2, EndSessions((77,)))]
            writes.answered(2, Made(78))
        async with linked(writes, session=2) as link:
            assert link.sent == []


async def test_the_ends_of_many_sessions(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """E8: they are divided into frames, and keep the window."""
    monkeypatch.setattr(arrivals, "WINDOW", 2)
    monkeypatch.setattr(writer, "SESSIONS_MAX", 3)
    writes = Writer()
    writes.end_sessions(range(10))
    async with linked(writes) as link:
        ended: list[int] = []
        for number in range(1, 5):
            await wait_all_tasks_blocked()
            message = link.sent[number - 1]
            assert isinstance(message, End)
            assert message.number < message.answered_below + 2
            ended += message.ending.sessions
            writes.answered(number, Made(1))
        await wait_all_tasks_blocked()
        assert ended == list(range(10))
        assert len(link.sent) == 4


async def test_too_many_and_too_large_writes_wait(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """E8: for room, in the order of their calls. So a large one has its turn."""
    monkeypatch.setattr(writer, "CHANGE_SET_BYTES_MAX", 10)
    writes = Writer()
    async with trio.open_nursery() as nursery, linked(writes) as link:
        asked = []
        for size in (4, 4, 9, 1):
            asked.append(Asked(writes, put("a", size), nursery))
            await wait_all_tasks_blocked()
        assert link.numbers == [1, 2]
        writes.answered(1, Made(1))
        await wait_all_tasks_blocked()
        assert link.numbers == [1, 2]
        writes.answered(2, Made(1))
        await wait_all_tasks_blocked()
        assert link.numbers == [1, 2, 3, 4]
        for number in (3, 4):
            writes.answered(number, Made(1))
        await wait_all_tasks_blocked()
        assert all(each.made for each in asked)


async def test_no_answer(autojump_clock: MockClock) -> None:
    """M22: the caller learns whether its write may have been made."""
    writes = Writer()
    async with trio.open_nursery() as nursery:
        unsent = Asked(writes, put("a"), nursery)
        await trio.sleep(ANSWER_SECONDS_MAX + 1)
        async with linked(writes):
            sent = Asked(writes, put("b"), nursery)
            await trio.sleep(ANSWER_SECONDS_MAX + 1)
    assert "not made" in str(unsent.error)
    assert "unknown" in str(sent.error)


async def test_a_closed_writer(autojump_clock: MockClock) -> None:
    """E3: everybody who waits learns why, and so does who comes later."""
    writes = Writer()
    async with trio.open_nursery() as nursery:
        asked = Asked(writes, put("a"), nursery)
        await wait_all_tasks_blocked()
        writes.close(StoreEnded(OSError("the disk failed")))
        late = Asked(writes, put("b"), nursery)
        writes.end_sessions([1])
    assert isinstance(asked.error, StoreEnded)
    assert isinstance(late.error, StoreEnded)
    async with linked(writes) as link:
        assert link.sent == []


@every_schedule(
    events=st.lists(st.tuples(st.sampled_from(["propose", "cancel", "link", "other", "answer"]), st.integers(0, 5)))
)
async def test_every_number_fits_what_the_controller_accepts(
    events: list[tuple[str, int]], autojump_clock: MockClock
) -> None:
    """M22: whatever is cancelled, answered or sent again, no number breaks the rules of `Arrivals`."""
    writes = Writer()
    sessions = 1
    async with trio.open_nursery() as nursery:
        asked: list[Asked] = []
        accepted = Arrivals(Outcomes())
        deciding: list[WriteId] = []

        async def take(session: int, link: Link) -> None:
            async def send(message: Write | Open | End) -> None:
                write = WriteId(session, message.number, message.answered_below)
                if accepted.take(write) is Verdict.DECIDE:
                    deciding.append(write)
                await link.send(message)

            with link.scope:
                await writes.send(session, send)

        link = Link()
        nursery.start_soon(take, sessions, link)
        for kind, number in events:
            if kind == "propose":
                kinds: list[Proposed] = [put("a"), OpenSession(1), EndSessions((number,))]
                asked.append(Asked(writes, kinds[number % 3], nursery))
            elif kind == "cancel" and asked:
                asked[number % len(asked)].scope.cancel()
            elif kind in ("link", "other"):
                link.scope.cancel()
                await wait_all_tasks_blocked()
                sessions += kind == "other"
                link = Link()
                nursery.start_soon(take, sessions, link)
            elif kind == "answer" and deciding:
                write = deciding.pop(number % len(deciding))
                accepted.decided(write)
                if write.session == sessions:
                    writes.answered(write.number, Made(5))
            if number % 2:
                await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
