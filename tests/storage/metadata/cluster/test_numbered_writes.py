"""Numbered writes: made once, however often they arrive, at one controller or at several one after another."""

from contextlib import suppress
from functools import partial

import pytest
import trio
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.metadata import log, transactions
from storage.metadata.cluster.arrivals import WINDOW, Unanswered
from storage.metadata.cluster.fields import LinkError
from storage.metadata.cluster.proposals import ALONG_SECONDS_MAX, WriterLost
from storage.metadata.cluster.reign import Reign
from storage.metadata.delta import measure
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.epochs import Deposed
from storage.metadata.outcomes import Made, Run, WriteId
from storage.metadata.proposed import Commit, EndSessions, OpenSession
from storage.metadata.store import Check, Conflict, Op, Put, PutSequential, StoreFull
from storage.metadata.take_over import Started
from tests.support.disk import SimulatedFiles
from tests.support.metadata_log import large
from tests.support.reigns import Follower, Successor, leading, leading_on, state_of, take_over_at
from tests.support.schedules import every_schedule


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PREALLOCATION_BYTES", 4096)
    monkeypatch.setattr(transactions, "PIECE_BYTES_MAX", 30_000)


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles(seed=1)


def writing(*ops: Op) -> Commit:
    return Commit(ops, measure(ops))


async def link_of(reign: Reign) -> int:
    """Open the session of a link."""
    return (await reign.propose(OpenSession(5000, "b2", 7))).revision


async def test_an_ended_writer_leaves_nothing(disk: SimulatedFiles) -> None:
    """E16: neither in the state nor in what the controller knows of arrivals."""
    async with leading(disk) as store:
        reign = store.reign
        session = await link_of(reign)
        await reign.propose_once(writing(Put("/a", b"")), WriteId(session, 1, 1))
        await reign.propose(EndSessions((session,)))
        arrivals = reign._numbered._arrivals
        assert not arrivals._deciding
        assert not arrivals._answered_below
        assert list(reign.image.outcomes.each()) == []


async def test_a_write_that_arrives_again_gets_its_answer_again(disk: SimulatedFiles) -> None:
    """M22: it changes nothing the second time."""
    async with leading(disk) as store:
        reign = store.reign
        session = await link_of(reign)
        write = WriteId(session, 1, 1)
        adding = writing(PutSequential("/s", b"", "p"), Put("/a", b"", expected=0), PutSequential("/s", b"", "p"))
        made = await reign.propose_once(adding, write)
        assert made == Made(session + 1, (Run(1, 2),))
        before = state_of(reign.image)
        for _ in range(3):
            assert await reign.propose_once(adding, write) == made
        assert state_of(reign.image) == before


async def test_so_it_does_behind_a_take_over(disk: SimulatedFiles) -> None:
    """M22, R28: the next controller knows the outcome from the log, or from a snapshot."""
    async with leading(disk) as store:
        session = await link_of(store.reign)
        adding = writing(PutSequential("/s", b"", "p"))
        first = await store.reign.propose_once(adding, WriteId(session, 1, 1))
        opened = await store.reign.propose_once(OpenSession(5000), WriteId(session, 2, 1))
        ended = await store.reign.propose_once(EndSessions((session + 2,)), WriteId(session, 3, 1))
    for with_snapshot in (False, True):
        async with leading_on(disk, take_over_at(disk)) as successor:
            assert await successor.reign.propose_once(adding, WriteId(session, 1, 1)) == first
            assert await successor.reign.propose_once(OpenSession(5000), WriteId(session, 2, 1)) == opened
            assert await successor.reign.propose_once(EndSessions((session + 2,)), WriteId(session, 3, 1)) == ended
            assert [record.key for record in await successor.scan("/s", "/t")] == ["/s-00000000000000000001"]
            assert list(successor.reign.image.sessions) == [session]
            if not with_snapshot:
                await successor.take_snapshot()


async def test_a_deposed_controller_repeats_no_answer(disk: SimulatedFiles) -> None:
    """C4: its successor may have ended the writer's session."""
    async with leading(disk) as store:
        write = WriteId(await link_of(store.reign), 1, 1)
        assert await store.reign.propose_once(writing(Put("/a", b"")), write) is not None
        take_over_at(disk.process())
        with pytest.raises(Deposed):
            await store.reign.propose_once(writing(Put("/a", b"")), write)


@pytest.mark.parametrize("moment", ["write", "sync", "exists"])
async def test_a_write_without_a_check_behind_it_is_repeated_at_the_successor(
    disk: SimulatedFiles, moment: str
) -> None:
    """M22, C3: it is in the log or not, and then it is made once."""
    async with leading(disk) as store:
        session = await link_of(store.reign)
        taken: list[Started] = []

        def before(operation: str, _path: object) -> None:
            if operation == moment and not taken:
                taken.append(take_over_at(disk.process()))

        disk.before = before
        adding = writing(PutSequential("/s", b"", "p"))
        with pytest.raises(Deposed):
            await store.reign.propose_once(adding, WriteId(session, 1, 1))
        disk.before = None
    async with leading_on(disk, taken[0]) as successor:
        made = await successor.reign.propose_once(adding, WriteId(session, 1, 1))
        assert made is not None
        assert [record.key for record in await successor.scan("/s", "/t")] == ["/s-00000000000000000001"]


async def test_calls_with_one_write_get_one_decision(disk: SimulatedFiles) -> None:
    """M22: the answer goes to the newest link. Cancelling the call of the older one stops nothing."""
    async with leading(disk) as store, trio.open_nursery() as nursery:
        session = await link_of(store.reign)
        answers: list[Made | None] = []
        old_link = trio.CancelScope()

        async def call(scope: trio.CancelScope) -> None:
            with scope:
                answers.append(await store.reign.propose_once(writing(*large()), WriteId(session, 1, 1)))

        disk.stop()
        nursery.start_soon(call, old_link)
        await wait_all_tasks_blocked()
        nursery.start_soon(call, trio.CancelScope())
        nursery.start_soon(call, trio.CancelScope())
        await wait_all_tasks_blocked()
        old_link.cancel()
        await wait_all_tasks_blocked()
        disk.resume()
        await wait_all_tasks_blocked()
        assert answers == [Made(session + 1, (Run(1, 2),))] * 2


async def test_a_large_write_is_made_though_its_link_is_cut(disk: SimulatedFiles) -> None:
    """M22, R15: its writer will ask for the outcome on its next link."""
    async with leading(disk) as store, trio.open_nursery() as nursery:
        session = await link_of(store.reign)
        write = WriteId(session, 1, 1)
        disk.stop()
        nursery.start_soon(store.reign.propose_once, writing(*large()), write)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        disk.resume()
        with trio.CancelScope(shield=True):
            await wait_all_tasks_blocked()
            assert store.statistics().extra["transactions"] == 1
            assert await store.reign.propose_once(writing(*large()), write) == Made(session + 1, (Run(1, 2),))


async def test_a_refused_write_is_decided_anew(disk: SimulatedFiles) -> None:
    """M22: the refusal changed nothing, so its repeat may succeed. Then it counts."""
    async with leading(disk) as store:
        session = await link_of(store.reign)
        await store.put("/a", b"")
        write = WriteId(session, 1, 1)
        for _ in range(2):
            with pytest.raises(Conflict):
                await store.reign.propose_once(writing(Put("/a", b"", expected=0)), write)
        await store.delete("/a")
        made = await store.reign.propose_once(writing(Put("/a", b"", expected=0)), write)
        assert await store.reign.propose_once(writing(Put("/a", b"", expected=0)), write) == made


async def test_a_write_that_changes_nothing_has_no_outcome_on_record(disk: SimulatedFiles) -> None:
    """E16: repeating it changes nothing either."""
    async with leading(disk) as store:
        session = await link_of(store.reign)
        point = store.reign.point
        made = await store.reign.propose_once(writing(Check("/absent", 0)), WriteId(session, 1, 1))
        assert made == Made(session)
        assert store.reign.point == point
        assert not list(store.reign.image.outcomes.each())


async def test_a_write_whose_writer_has_the_answer_is_dropped(disk: SimulatedFiles) -> None:
    """M22: a copy that arrives late."""
    async with leading(disk) as store:
        session = await link_of(store.reign)
        put = writing(Put("/a", b""))
        assert await store.reign.propose_once(put, WriteId(session, 1, 1)) is not None
        assert await store.reign.propose_once(put, WriteId(session, 2, 2)) is not None
        version = store.reign.image.revision
        assert await store.reign.propose_once(put, WriteId(session, 1, 1)) is None
        assert store.reign.image.revision == version
        with pytest.raises(LinkError):
            await store.reign.propose_once(put, WriteId(session, 2 + WINDOW, 2))


async def test_the_end_of_its_session_ends_a_writer(disk: SimulatedFiles) -> None:
    """M19, M22: nobody knows any more what it has made. What it asks next is not made, and is not refused either."""
    async with leading(disk) as store, trio.open_nursery() as nursery:
        session = await link_of(store.reign)
        put = writing(Put("/a", b""))
        await store.reign.propose_once(put, WriteId(session, 1, 1))
        version = store.reign.image.revision
        lost = []

        async def ask(number: int) -> None:
            with pytest.raises(WriterLost) as caught:
                await store.reign.propose_once(put, WriteId(session, number, 1))
            lost.append(caught.value.definite)

        # Its last write is decided behind its end, in one group.
        disk.stop()
        nursery.start_soon(store.put, "/first", b"")
        await wait_all_tasks_blocked()
        nursery.start_soon(store.reign.propose, EndSessions((session,)))
        await wait_all_tasks_blocked()
        nursery.start_soon(ask, 2)
        await wait_all_tasks_blocked()
        assert not lost
        disk.resume()
        await wait_all_tasks_blocked()
        await ask(1)
        await ask(2)
        assert lost == [False] * 3
        assert store.reign.image.revision == version + 2
        assert not list(store.reign.image.outcomes.each())


async def test_a_writer_may_end_its_own_session(disk: SimulatedFiles) -> None:
    """M19, E16: its answer is the last thing that it hears, and leaves no outcome behind."""
    async with leading(disk) as store:
        session = await link_of(store.reign)
        ending = EndSessions((session,))
        assert await store.reign.propose_once(ending, WriteId(session, 1, 1)) == Made(session + 1)
        with pytest.raises(WriterLost):
            await store.reign.propose_once(ending, WriteId(session, 1, 1))
        assert not list(store.reign.image.outcomes.each())


async def test_a_full_disk_refuses_a_numbered_write_that_may_be_repeated(disk: SimulatedFiles) -> None:
    """C24, M22: nothing was done, so the repeat is decided anew once there is space."""
    async with leading(disk) as store:
        session = await link_of(store.reign)
        disk.set_capacity(disk.used_bytes)
        adding = writing(Put("/a", bytes(1000)), PutSequential("/s", b"", "p"))
        number = 1
        with suppress(StoreFull):
            while number < 100:
                await store.reign.propose_once(adding, WriteId(session, number, number))
                number += 1
        with pytest.raises(StoreFull):
            await store.reign.propose_once(adding, WriteId(session, number, number))
        disk.set_capacity(None)
        assert await store.reign.propose_once(adding, WriteId(session, number, number)) is not None
        assert len(await store.scan("/s", "/t")) == number


async def test_a_submitted_write_is_told_once_and_its_effect_is_shown_then(disk: SimulatedFiles) -> None:
    """M22, C3: without a task that waits. A repeat is told the same; a write whose answer its writer has, nothing."""
    async with leading(disk) as store:
        reign = store.reign
        session = await link_of(reign)
        told: list[tuple[object, bool]] = []

        def tell(outcome: object) -> None:
            told.append((outcome, store.peek("/a") is not None))

        adding = writing(Put("/a", b"", expected=0))
        await reign.submit(adding, WriteId(session, 1, 1), tell)
        await reign.submit(adding, WriteId(session, 1, 1), tell)
        assert told == [], "it is not durable"
        await store.barrier()
        await reign.propose_once(writing(Put("/b", b"")), WriteId(session, 2, 1))
        assert told == [(Made(session + 1), True)] * 2
        await reign.submit(adding, WriteId(session, 1, 1), tell)
        assert told == [(Made(session + 1), True)] * 3
        await reign.submit(writing(Put("/a", b"", expected=0)), WriteId(session, 3, 1), tell)
        await reign.propose_once(writing(Put("/b", b"")), WriteId(session, 4, 4))
        assert isinstance(told[3][0], Conflict)
        await reign.submit(adding, WriteId(session, 1, 1), tell)
        assert len(told) == 4, "its writer has the answer"
        with pytest.raises(WriterLost):
            await reign.submit(adding, WriteId(session + 100, 1, 1), tell)


async def test_a_submitted_write_of_a_deposed_controller_has_an_unknown_outcome(disk: SimulatedFiles) -> None:
    """C3, M22: the successor may have made it, so its writer asks there."""
    async with leading(disk) as store:
        session = await link_of(store.reign)
        told: list[object] = []
        await store.reign.submit(writing(Put("/a", b"")), WriteId(session, 1, 1), told.append)
        take_over_at(disk.process())
        await wait_all_tasks_blocked()
        assert [type(each) for each in told] == [Deposed]
        with pytest.raises(Deposed):
            await store.reign.submit(writing(Put("/b", b"")), WriteId(session, 2, 1), told.append)


async def test_a_write_that_no_caller_waits_for_is_held_back(disk: SimulatedFiles, autojump_clock: MockClock) -> None:
    """M22: as for a caller in this process."""
    del autojump_clock
    async with leading(disk) as store, trio.open_nursery() as nursery:
        session = await link_of(store.reign)
        groups = store.statistics().extra["groups"]
        begun = trio.current_time()
        nursery.start_soon(
            partial(store.reign.propose_once, writing(Put("/a", b"")), WriteId(session, 1, 1), along=True)
        )
        await wait_all_tasks_blocked()
        await store.put("/b", b"")
        assert store.statistics().extra["groups"] == groups + 1
        await store.reign.propose_once(writing(Put("/c", b"")), WriteId(session, 2, 1), along=True)
        assert trio.current_time() - begun == pytest.approx(ALONG_SECONDS_MAX)


class Writer:
    """A follower's writes: each adds one record, and is sent until it is answered."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._unanswered: Unanswered[Commit] = Unanswered()
        self.written = 0

    def write(self) -> None:
        """Begin another write."""
        self._unanswered.add(writing(PutSequential("/s", b"%d" % self.written, "p")))
        self.written += 1

    async def send(self, reign: Reign, *, is_heard: bool) -> None:
        """Send everything without an answer on a new link. Whether the answers arrive is `is_heard`."""

        async def send_one(number: int, commit: Commit) -> None:
            write = WriteId(self._session, number, self._unanswered.answered_below)
            made = await reign.propose_once(commit, write)
            if is_heard and made is not None:
                self._unanswered.answered(number)

        async with trio.open_nursery() as nursery:
            for number, commit in self._unanswered.again():
                nursery.start_soon(send_one, number, commit)


@every_schedule(
    examples_max=40,
    steps=st.lists(st.sampled_from(["write", "heard", "unheard", "cut", "deposed", "snapshot", "power"]), max_size=30),
)
async def test_every_write_is_made_once(steps: list[str]) -> None:
    """M22, R28, C3: over links that are cut, answers that are lost, and controllers that follow one another."""
    disk = SimulatedFiles(seed=len(steps))
    async with leading(disk) as store:
        writer = Writer(await link_of(store.reign))
    position = 0
    while position <= len(steps):
        async with leading(disk) as store:
            follower = await Follower.of(store.reign)
            position = await play(store, disk, writer, steps, position)
            assert state_of(follower.replay.image) == state_of(store.reign.image)
        disk.before = None
        if 0 < position <= len(steps) and steps[position - 1] == "power":
            disk = disk.crash()
    async with leading(disk) as store:
        await writer.send(store.reign, is_heard=True)
        values = sorted(int(record.value) for record in await store.scan("/s", "/t"))
        assert values == list(range(writer.written))


async def play(store: EmbeddedStore, disk: SimulatedFiles, writer: Writer, steps: list[str], begin: int) -> int:
    """Play the steps of one reign. Return the place of the step behind its end."""
    for position, step in enumerate(steps[begin:], begin + 1):
        if step == "write":
            writer.write()
        elif step in ("heard", "unheard"):
            await writer.send(store.reign, is_heard=step == "heard")
        elif step == "cut":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(writer.send, store.reign, is_heard=True))
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        elif step == "snapshot":
            await store.take_snapshot()
        elif step == "deposed":
            writer.write()
            Successor(disk, disk.random.randrange(8))
            with pytest.raises((Deposed, ExceptionGroup)) as ended:
                await send_until_deposed(writer, store.reign)
            assert isinstance(ended.value, Deposed) or ended.group_contains(Deposed)
            return position
        else:
            return position
    return len(steps) + 1


async def send_until_deposed(writer: Writer, reign: Reign) -> None:
    while True:
        await writer.send(reign, is_heard=False)
        reign.require_reigning()
