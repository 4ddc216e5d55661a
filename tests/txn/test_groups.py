"""Groups of transactions over the memory store: one decision, whatever happens around it."""

from collections.abc import AsyncIterator, Sequence

import pytest
import trio
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.entry import TxnId
from storage.metadata.memory import MemoryStore
from storage.metadata.store import IndexEntry, Op, Put, starting_with
from tests.support.group_offices import AGE_MS, Office, now_ms, running
from tests.support.metadata import keys
from tests.support.schedules import every_schedule
from tests.support.steered_store import SteeredStore
from txn.errors import (
    AppliedByAnother,
    AppliedOtherwise,
    GroupAborted,
    GroupDecides,
    InvalidTxnStatus,
    TooManyWinners,
    TransactionNotFound,
)
from txn.group_record import KEY_PREFIX, Content, group_key
from txn.groups import SETTLE_BATCH_MAX, WINNERS_MAX
from txn.headers import BY_GROUP, TransactionGroup, header_key, v5_id
from txn.states import EndAction, TxnState

ONE, TWO = TransactionGroup("app", 1), TransactionGroup("app", 2)


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    async with running(Office(MemoryStore())) as made:
        yield made


async def test_one_compare_and_set_names_the_winners_and_the_others_abort(
    autojump_clock: MockClock, office: Office
) -> None:
    """D17: of a failed attempt, its repetition and a speculative one, only the winner is committed."""
    failed, winner, speculative, other = [await office.join(ONE) for _ in range(4)]
    await wait_all_tasks_blocked()
    revision = office.metadata.statistics().revision
    async with office.metadata.watch_range(*starting_with(KEY_PREFIX)) as watch:
        await watch.next()
        await office.commit(ONE, winner, other)
        change = await watch.next()
    assert change.revision == revision + 1, "the decision is the first thing that changes, and one change"
    await wait_all_tasks_blocked()
    assert await office.states(failed, winner, speculative, other) == "ABORTED COMMITTED ABORTED COMMITTED"
    assert office.coordinator.statistics().committed == office.coordinator.statistics().aborted == 2


async def test_a_batch_is_applied_once(autojump_clock: MockClock, office: Office) -> None:
    """D17: asked again, by whomever and however late, a batch that is there stays as it is."""
    winner = await office.join(ONE)
    late = await office.join(ONE)
    await office.commit(ONE, winner)
    revision = office.metadata.statistics().revision
    await office.commit(ONE, winner)
    await office.commit(ONE, late)
    await wait_all_tasks_blocked()
    assert await office.states(winner, late) == "COMMITTED ABORTED"
    assert await office.is_applied(ONE)
    assert await office.groups.abort(ONE, once=False) == 1
    assert office.metadata.statistics().revision == revision + 1, "the two headers, in one change set"
    # A year and many batches later it is known as well, and the headers are long forgotten.
    await trio.sleep(365 * 86_400)
    await office.commit(TWO, await office.join(TWO))
    assert await office.is_applied(ONE)
    assert await office.is_applied(TWO)
    await office.commit(ONE)


async def test_a_batch_of_another_origin_is_not_taken_for_one_that_was_applied(
    autojump_clock: MockClock, office: Office
) -> None:
    """D17: a query that lost its checkpoint counts anew; its first batch is not what another one's was."""
    coordinator, groups = office.coordinator, office.groups
    for batch in (TransactionGroup("app", 0), TransactionGroup("app", 1)):
        txn = await coordinator.new_in_group(0, 60_000, batch, once=False, origin="one")
        assert txn is not None
        await groups.commit(batch, [txn], once=False, origin="one")
    # Nobody but tasks says who counts, so a batch without rows says it not.
    await groups.commit(TransactionGroup("app", 2), [], once=False)
    again = TransactionGroup("app", 1)
    assert await coordinator.new_in_group(0, 60_000, again, once=False, origin="one") is None
    assert await coordinator.new_in_group(0, 60_000, again, once=False) is None
    await groups.commit(again, [], once=False, origin="one")
    for _ in range(2):
        with pytest.raises(
            AppliedByAnother, match=r"up to 2 of application 'app' were written by 'one'. Batch 1 came from a different"
        ):
            await coordinator.new_in_group(0, 60_000, again, once=False, origin="two")
    with pytest.raises(AppliedByAnother):
        await groups.commit(again, [], once=False, origin="two")
    # One that goes on behind them has come by the numbers in some other way.
    assert await coordinator.new_in_group(0, 60_000, TransactionGroup("app", 3), once=False, origin="two") is not None


async def test_a_batch_that_holds_something_else_is_not_taken_for_one_that_was_applied(
    autojump_clock: MockClock, office: Office
) -> None:
    """E19: neither the last one, nor one before it, of which nothing is known any more."""
    groups = office.groups
    await groups.commit(ONE, [await office.join(ONE)], once=False, content=Content("plan", "rows"))
    left_open = await office.join(TWO)
    for same in Content("plan", "others"), Content("another", "rows"), Content(None, "rows"), None:
        await groups.commit(ONE, [], once=False, content=same)
    for other in Content("another", "others"), Content(None, "others"), Content("another", None):
        with pytest.raises(
            AppliedOtherwise, match="Batch 1 of application 'app' differs from the one that was written"
        ):
            await groups.commit(ONE, [], once=False, content=other)
        await groups.commit(ONE, [], once=False, content=other, trusts_number=True)
    # Of one that was written by its number alone nothing is known.
    await groups.commit(TWO, [left_open], once=False)
    with pytest.raises(AppliedOtherwise):
        await groups.commit(TWO, [], once=False, content=Content("plan", "rows"))
    three = TransactionGroup("app", 3)
    await groups.commit(three, [], once=False, content=Content("plan", "rows"))
    with pytest.raises(AppliedOtherwise, match="Batch 1 of application 'app' was repeated, but batches up to 3"):
        await groups.commit(ONE, [], once=False, content=Content("plan", "rows"))
    await wait_all_tasks_blocked()
    assert await office.state(left_open) is TxnState.COMMITTED


async def test_a_batch_without_writers_is_applied_too(autojump_clock: MockClock, office: Office) -> None:
    """A micro-batch may have nothing to write."""
    await office.commit(ONE)
    assert await office.is_applied(ONE)
    await office.commit(TWO)
    assert await office.is_applied(TWO)
    assert await keys(office.metadata, *starting_with(KEY_PREFIX)) == [group_key("app")]


async def test_an_aborted_batch_may_be_tried_again(autojump_clock: MockClock, office: Office) -> None:
    first = [await office.join(ONE) for _ in range(120)]
    assert await office.groups.abort(ONE, once=False) is None
    assert await office.states(*first) == " ".join(["ABORTED"] * 120)
    with pytest.raises(InvalidTxnStatus):
        await office.commit(ONE, first[0])
    again = await office.join(ONE)
    await office.commit(ONE, again)
    await wait_all_tasks_blocked()
    assert await office.state(again) is TxnState.COMMITTED
    assert not await office.is_applied(TWO)


@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_job_that_runs_once_is_aborted_for_good(
    autojump_clock: MockClock, office: Office, is_begun: bool
) -> None:
    """Its driver aborts while tasks are still beginning: nobody would end what they write before its time-out."""
    once = TransactionGroup("once", 0)
    early = [await office.join(once, once=True) for _ in range(2 * is_begun)]
    for _ in range(2):
        assert await office.groups.abort(once, once=True) is None
    await wait_all_tasks_blocked()
    assert all([await office.state(txn) is TxnState.ABORTED for txn in early])
    with pytest.raises(GroupAborted, match="nothing more can be written"):
        await office.join(once, once=True)
    with pytest.raises(GroupAborted):
        await office.groups.commit(once, early, once=True)
    await trio.sleep(2 * AGE_MS / 1000)
    assert await keys(office.metadata, *starting_with(KEY_PREFIX)) == []


async def test_a_job_that_ran_once_and_is_committed_stays_so(autojump_clock: MockClock, office: Office) -> None:
    once = TransactionGroup("once", 0)
    txn = await office.join(once, once=True)
    await office.groups.commit(once, [txn], once=True)
    assert await office.groups.abort(once, once=True) == 0
    await wait_all_tasks_blocked()
    assert await office.state(txn) is TxnState.COMMITTED


async def test_a_winner_that_timed_out_lets_nothing_be_committed(autojump_clock: MockClock, office: Office) -> None:
    """A batch is there whole or not at all."""
    slow = await office.join(ONE)
    await trio.sleep(59)
    quick = await office.join(ONE)
    await trio.sleep(2)
    assert await office.states(slow, quick) == "ABORTED OPEN"
    with pytest.raises(InvalidTxnStatus, match="already ABORTED"):
        await office.commit(ONE, slow, quick)
    assert await office.state(quick) is TxnState.OPEN
    await office.commit(ONE, quick)


async def test_one_transaction_of_a_group_is_not_committed_alone(autojump_clock: MockClock, office: Office) -> None:
    """It may be aborted alone, and then the group cannot count it."""
    txn = await office.join(ONE)
    with pytest.raises(GroupDecides, match="name its winners"):
        await office.coordinator.end(txn, EndAction.COMMIT)
    await office.coordinator.end(txn, EndAction.ABORT)
    await office.coordinator.end(txn, EndAction.ABORT)
    with pytest.raises(InvalidTxnStatus):
        await office.commit(ONE, txn)
    with pytest.raises(InvalidTxnStatus):
        await office.coordinator.end(txn, EndAction.COMMIT)


async def test_winners_are_of_the_group(autojump_clock: MockClock, office: Office) -> None:
    """Bad input changes nothing."""
    mine = await office.join(ONE)
    stranger = await office.coordinator.new_transaction(0, 60_000)
    elsewhere = await office.join(TransactionGroup("other", 1))
    revision = office.metadata.statistics().revision
    for wrong in (stranger, elsewhere, v5_id(0, 999_999)):
        with pytest.raises(TransactionNotFound):
            await office.commit(ONE, mine, wrong)
    with pytest.raises(TooManyWinners):
        await office.commit(ONE, *[mine] * (WINNERS_MAX + 1))
    assert office.metadata.statistics().revision == revision


async def test_names_of_applications_do_not_meet(autojump_clock: MockClock, office: Office) -> None:
    """T32: whatever is in a name, it is one name."""
    names = ["a", "a:1", "a%3A1", "a/b", "a\u00e9", "a "]
    txns = [await office.join(TransactionGroup(name, 1)) for name in names]
    await office.commit(TransactionGroup("a", 1), txns[0])
    await wait_all_tasks_blocked()
    assert await office.states(*txns) == "COMMITTED" + " OPEN" * 5


async def test_what_a_later_batch_finds_open_is_ended_as_decided(autojump_clock: MockClock) -> None:
    """Before the record goes on to the next batch, what it decided of the last one stands in the headers."""
    office = Office(MemoryStore())
    winner, loser = await office.join(ONE), await office.join(ONE)
    await office.commit(ONE, winner)
    assert await office.states(winner, loser) == "OPEN OPEN", "nobody is there to tell them"
    await office.join(TWO)
    assert await office.states(winner, loser) == "COMMITTED ABORTED"


async def test_tasks_of_a_batch_that_begin_at_once_end_the_last_one_together(autojump_clock: MockClock) -> None:
    """A batch may have a thousand winners, and the next one as many tasks."""
    store = SteeredStore()
    office = Office(store)
    winners = [await office.join(ONE) for _ in range(400)]
    await office.commit(ONE, *winners)
    asked = store.commits

    async def sync(ops: Sequence[Op]) -> None:
        await trio.sleep(0.01)

    store.before = sync
    async with trio.open_nursery() as tasks:
        for _ in range(50):
            tasks.start_soon(office.join, TWO)
    assert {await office.state(txn) for txn in winners} == {TxnState.COMMITTED}
    # Eight change sets, and each task's own: it may find the batch begun by another.
    assert store.commits - asked <= 8 + 2 * 50


async def test_a_batch_that_was_given_up_ends_when_a_later_one_is_begun(autojump_clock: MockClock) -> None:
    office = Office(MemoryStore())
    given_up = await office.join(ONE)
    await office.join(TWO)
    assert await office.state(given_up) is TxnState.ABORTED, "nobody has to wait for its time-out"
    with pytest.raises(InvalidTxnStatus):
        await office.coordinator.end(given_up, EndAction.COMMIT)
    # It was never applied: asked for again, from an older checkpoint, it is tried again.
    again = await office.join(ONE)
    await office.commit(ONE, again)
    assert await office.is_applied(ONE)
    assert not await office.is_applied(TWO)


async def test_a_decision_outlives_the_broker_that_took_it(autojump_clock: MockClock) -> None:
    """D17: killed between the decision and the headers, it is told by the next start, and by a deadline as well."""
    metadata = MemoryStore()
    dead = Office(metadata)
    winner, loser = await dead.join(ONE), await dead.join(ONE)
    await dead.commit(ONE, winner)
    with pytest.raises(InvalidTxnStatus, match="already COMMITTED"):
        await Office(metadata).coordinator.end(winner, EndAction.ABORT)
    async with running(Office(metadata)) as next_one:
        assert await next_one.states(winner, loser) == "COMMITTED ABORTED"


async def test_what_a_broker_left_open_ends_at_its_deadline(autojump_clock: MockClock, office: Office) -> None:
    """T9, T10: another one ends it, which has opened nothing itself and slept already when this was opened."""
    await trio.sleep(10)
    dead = Office(office.metadata)
    member, alone = await dead.join(ONE), await dead.coordinator.new_transaction(0, 60_000)
    await trio.sleep(59)
    assert await office.states(member, alone) == "OPEN OPEN"
    await trio.sleep(2)
    assert await office.states(member, alone) == "ABORTED ABORTED"


async def test_a_deadline_that_passes_after_the_decision_changes_nothing(autojump_clock: MockClock) -> None:
    """The time-out proposes an abort; the group has said otherwise."""
    office = Office(MemoryStore())
    winner, loser = await office.join(ONE), await office.join(ONE)
    await office.commit(ONE, winner)
    await trio.sleep(61)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.transactions.timeout_sweep.run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert await office.states(winner, loser) == "COMMITTED ABORTED"


async def test_members_that_time_out_together_cost_few_change_sets(autojump_clock: MockClock) -> None:
    """T9: each abort writes the group's record anew; two brokers that did so one by one kept each other from it."""
    store = SteeredStore()
    async with running(Office(store)) as office, running(Office(store)) as other:
        txns = [await office.join(ONE) for _ in range(200)]
        later = await other.join(ONE)
        alone = await other.coordinator.new_transaction(0, 60_000)
        commits = store.commits
        await trio.sleep(59)
        kept = await other.join(ONE)
        await trio.sleep(2)
        assert {await office.state(txn) for txn in (*txns, later, alone)} == {TxnState.ABORTED}
        assert await office.state(kept) is TxnState.OPEN
        assert store.commits - commits <= 20
        await other.commit(ONE, kept)


async def test_jobs_that_ran_once_are_forgotten(autojump_clock: MockClock, office: Office) -> None:
    """Records of one-off jobs go when they are old; one whose attempts are still open stays, and so do applications."""
    once = TransactionGroup("once", 0)
    txn = await office.join(once, once=True)
    await office.groups.commit(once, [txn], once=True)
    await office.commit(ONE, await office.join(ONE))
    await office.groups.commit(TransactionGroup("empty", 0), [], once=True)
    await trio.sleep(AGE_MS / 1000 - 1)
    assert len(await keys(office.metadata, *starting_with(KEY_PREFIX))) == 3
    await office.join(TransactionGroup("long", 0), once=True)
    await trio.sleep(2)
    assert await keys(office.metadata, *starting_with(KEY_PREFIX)) == [group_key("app"), group_key("long")]
    await trio.sleep(2 * AGE_MS / 1000)
    assert await keys(office.metadata, *starting_with(KEY_PREFIX)) == [group_key("app")]


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_long_job_that_ran_once_is_remembered_after_its_end(
    autojump_clock: MockClock, office: Office, is_committed: bool
) -> None:
    """D17: its driver asks again if the answer was lost, and tasks that do not know yet still begin."""
    once = TransactionGroup("once", 0)
    await office.join(once, once=True)
    await trio.sleep(AGE_MS / 1000 - 30)
    txn = await office.join(once, once=True)
    await trio.sleep(29)
    if is_committed:
        await office.groups.commit(once, [txn], once=True)
    else:
        assert await office.groups.abort(once, once=True) is None
    await trio.sleep(AGE_MS / 1000 - 1)
    if is_committed:
        await office.groups.commit(once, [txn], once=True)
        assert await office.is_applied(once)
    else:
        with pytest.raises(GroupAborted):
            await office.join(once, once=True)
    await trio.sleep(2)
    assert await keys(office.metadata, *starting_with(KEY_PREFIX)) == []


async def turns_later(turns: int) -> None:
    for _ in range(turns):
        await trio.lowlevel.checkpoint()


@every_schedule(turns=st.lists(st.integers(0, 12), min_size=4, max_size=4))
async def test_a_decision_and_whatever_comes_at_the_same_time(turns: list[int]) -> None:
    """D17: two drivers commit, a winner is aborted, a later batch begins, a broker tells: all of it or nothing."""
    metadata = MemoryStore()
    one, other = Office(metadata), Office(metadata)
    winners = [await one.join(ONE) for _ in range(3)]
    answers: dict[str, bool] = {}

    async def commit(office: Office, name: str, after: int, *txns: TxnId) -> None:
        await turns_later(after)
        try:
            await office.commit(ONE, *txns)
        except (InvalidTxnStatus, TransactionNotFound):
            answers[name] = False
        else:
            answers[name] = True

    async def abort(after: int) -> None:
        await turns_later(after)
        try:
            await other.coordinator.end(winners[1], EndAction.ABORT)
        except InvalidTxnStatus:
            answers["abort"] = False
        else:
            answers["abort"] = True

    async def go_on(after: int) -> None:
        await turns_later(after)
        await other.coordinator.new_in_group(0, 60_000, TWO, once=False)

    async with running(one), trio.open_nursery() as nursery:
        nursery.start_soon(commit, one, "first", turns[0], *winners)
        nursery.start_soon(commit, other, "second", turns[1], *winners[:2])
        nursery.start_soon(abort, turns[2])
        nursery.start_soon(go_on, turns[3])
    await one.groups.settle("app")
    states = [await one.state(txn) for txn in winners]
    committed = [state is TxnState.COMMITTED for state in states]
    # Either nobody's choice, or the first's, or the second's; and whoever was told "committed" finds a choice made.
    assert committed in ([False] * 3, [True] * 3, [True, True, False])
    assert any(committed) == (answers["first"] or answers["second"])
    assert answers["abort"] != committed[1]


async def test_a_decision_meets_a_time_out_of_its_winner(mock_clock: MockClock) -> None:
    """D17, T9: between looking and deciding, the winner is aborted by its deadline; so nothing is decided."""
    store = SteeredStore()
    office, other = Office(store), Office(store)
    winner = await office.join(ONE)
    mock_clock.jump(60)

    async def abort(ops: Sequence[Op]) -> None:
        store.before = None
        await other.groups.abort_due(ONE.application, now_ms())

    store.before = abort
    with pytest.raises(InvalidTxnStatus):
        await office.commit(ONE, winner)
    assert await office.state(winner) is TxnState.ABORTED
    assert not await office.is_applied(ONE)


async def test_a_large_batch_ends_without_reading_its_members_for_each_part(mock_clock: MockClock) -> None:
    """E7, T9: three looks at them, however many parts there are; by a deadline and by a later batch."""
    office = Office(MemoryStore())
    members = [await office.join(ONE) for _ in range(4 * SETTLE_BATCH_MAX)]
    mock_clock.jump(60)
    asked = office.transactions.counters.index_queries
    await office.groups.abort_due(ONE.application, now_ms())
    assert office.transactions.counters.index_queries - asked == 3
    assert {await office.state(txn) for txn in members} == {TxnState.ABORTED}
    members = [await office.join(TWO) for _ in range(4 * SETTLE_BATCH_MAX)]
    asked = office.transactions.counters.index_queries
    await office.join(TransactionGroup(ONE.application, 3))
    assert office.transactions.counters.index_queries - asked == 3
    assert {await office.state(txn) for txn in members} == {TxnState.ABORTED}


async def test_a_time_out_stops_at_a_decision_in_its_middle(mock_clock: MockClock) -> None:
    """D17: who is named between two parts of it is committed, whatever their deadline."""
    store = SteeredStore()
    office, other = Office(store), Office(store)
    members = [await office.join(ONE) for _ in range(2 * SETTLE_BATCH_MAX)]
    mock_clock.jump(60)

    async def decide(_ops: Sequence[Op]) -> None:
        store.after = None
        left = [txn for txn in members if await office.state(txn) is TxnState.OPEN]
        assert len(left) == SETTLE_BATCH_MAX
        await other.commit(ONE, *left)

    store.after = decide
    await office.groups.abort_due(ONE.application, now_ms())
    states = [await office.state(txn) for txn in members]
    assert states.count(TxnState.COMMITTED) == states.count(TxnState.ABORTED) == SETTLE_BATCH_MAX


@pytest.mark.parametrize(
    "damaged",
    [
        Put(group_key("gone"), b"{}"),
        Put("/txn/id/nobody", b"{}", indexes=(IndexEntry(BY_GROUP, "gone"),)),
        Put(header_key(v5_id(0, 999)), b"[]", indexes=(IndexEntry(BY_GROUP, "app"),)),
    ],
    ids=["group", "key", "member"],
)
async def test_a_damaged_record_stops_no_other_group(autojump_clock: MockClock, damaged: Put) -> None:
    """E11: neither at a start nor later, also when its members' deadlines come."""
    metadata = MemoryStore()
    await metadata.commit([damaged])
    async with running(Office(metadata)) as office:
        winner, loser = await office.join(TransactionGroup("other", 1)), await office.join(TransactionGroup("other", 1))
        await office.commit(TransactionGroup("other", 1), winner)
        await metadata.put(group_key("app"), b"[]")
        await metadata.put(group_key("app"), b"{}")
        late = await office.join(TransactionGroup("other", 2))
        await trio.sleep(100)
        assert await office.states(winner, loser, late) == "COMMITTED ABORTED ABORTED"
