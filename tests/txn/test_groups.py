"""Groups of transactions over the memory store: one decision, whatever happens around it."""

from collections.abc import AsyncIterator, Sequence

import pytest
import trio
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.entry import TxnId
from storage.metadata.memory import MemoryStore
from storage.metadata.paging import AT_ONCE
from storage.metadata.store import ABSENT, IndexEntry, Op, Put, starting_with
from tests.support.group_hosts import AGE_MS, GroupHost, running
from tests.support.metadata import keys
from tests.support.schedules import every_schedule
from tests.support.steered_store import SteeredStore
from txn.errors import (
    AppliedByAnother,
    AppliedOtherwise,
    GroupAborted,
    GroupDecides,
    InvalidTxnStatus,
    RecordUnreadable,
    TooManyWinners,
    TransactionNotFound,
)
from txn.group_record import KEY_PREFIX, Content, group_key
from txn.groups import SETTLE_BATCH_MAX, WINNERS_MAX
from txn.headers import BY_GROUP, Header, TransactionGroup, header_key, v5_id
from txn.states import EndAction, TxnState

ONE, TWO = TransactionGroup("app", 1), TransactionGroup("app", 2)


@pytest.fixture
async def host() -> AsyncIterator[GroupHost]:
    async with running(GroupHost(MemoryStore())) as made:
        yield made


async def test_one_compare_and_set_names_the_winners_and_the_others_abort(
    autojump_clock: MockClock, host: GroupHost
) -> None:
    """D17: of a failed attempt, its repetition and a speculative one, only the winner is committed."""
    failed, winner, speculative, other = [await host.join(ONE) for _ in range(4)]
    await wait_all_tasks_blocked()
    revision = host.metadata.statistics().revision
    async with host.metadata.watch_range(*starting_with(KEY_PREFIX)) as watch:
        await watch.next()
        await host.commit(ONE, winner, other)
        change = await watch.next()
    assert change.revision == revision + 1, "the decision is the first thing that changes, and one change"
    await wait_all_tasks_blocked()
    assert await host.states(failed, winner, speculative, other) == "ABORTED COMMITTED ABORTED COMMITTED"
    assert host.coordinator.statistics().committed == host.coordinator.statistics().aborted == 2


async def test_a_batch_is_applied_once(autojump_clock: MockClock, host: GroupHost) -> None:
    """D17: a repeated request, from any client and at any time, does not change an applied batch."""
    winner = await host.join(ONE)
    late = await host.join(ONE)
    await host.commit(ONE, winner)
    revision = host.metadata.statistics().revision
    await host.commit(ONE, winner)
    await host.commit(ONE, late)
    await wait_all_tasks_blocked()
    assert await host.states(winner, late) == "COMMITTED ABORTED"
    assert await host.is_applied(ONE)
    assert await host.groups.abort(ONE, once=False) == 1
    assert host.metadata.statistics().revision == revision + 1, "the two headers, in one change set"
    # A year and many batches later it is known as well, and the headers are long forgotten.
    await trio.sleep(365 * 86_400)
    await host.commit(TWO, await host.join(TWO))
    assert await host.is_applied(ONE)
    assert await host.is_applied(TWO)
    await host.commit(ONE)


async def test_a_batch_of_another_origin_is_not_taken_for_one_that_was_applied(
    autojump_clock: MockClock, host: GroupHost
) -> None:
    """D17: a query that lost its checkpoint starts counting again; its first batch differs from the other query's."""
    coordinator, groups = host.coordinator, host.groups
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
    autojump_clock: MockClock, host: GroupHost
) -> None:
    """E19: this covers the last batch, and earlier ones, of which nothing is known any more."""
    groups = host.groups
    await groups.commit(ONE, [await host.join(ONE)], once=False, content=Content("plan", "rows"))
    left_open = await host.join(TWO)
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
    assert await host.state(left_open) is TxnState.COMMITTED


async def test_a_batch_without_writers_is_applied_too(autojump_clock: MockClock, host: GroupHost) -> None:
    """A micro-batch may write nothing."""
    await host.commit(ONE)
    assert await host.is_applied(ONE)
    await host.commit(TWO)
    assert await host.is_applied(TWO)
    assert await keys(host.metadata, *starting_with(KEY_PREFIX)) == [group_key("app")]


async def test_an_aborted_batch_may_be_tried_again(autojump_clock: MockClock, host: GroupHost) -> None:
    first = [await host.join(ONE) for _ in range(120)]
    assert await host.groups.abort(ONE, once=False) is None
    assert await host.states(*first) == " ".join(["ABORTED"] * 120)
    with pytest.raises(InvalidTxnStatus):
        await host.commit(ONE, first[0])
    again = await host.join(ONE)
    await host.commit(ONE, again)
    await wait_all_tasks_blocked()
    assert await host.state(again) is TxnState.COMMITTED
    assert not await host.is_applied(TWO)


@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_job_that_runs_once_is_aborted_for_good(
    autojump_clock: MockClock, host: GroupHost, is_begun: bool
) -> None:
    """Its driver aborts while tasks are still starting; otherwise their writes would stay until the time-out."""
    once = TransactionGroup("once", 0)
    early = [await host.join(once, once=True) for _ in range(2 * is_begun)]
    for _ in range(2):
        assert await host.groups.abort(once, once=True) is None
    await wait_all_tasks_blocked()
    assert all([await host.state(txn) is TxnState.ABORTED for txn in early])
    with pytest.raises(GroupAborted, match="nothing more can be written"):
        await host.join(once, once=True)
    with pytest.raises(GroupAborted):
        await host.groups.commit(once, early, once=True)
    await trio.sleep(2 * AGE_MS / 1000)
    assert await keys(host.metadata, *starting_with(KEY_PREFIX)) == []


async def test_a_job_that_ran_once_and_is_committed_stays_so(autojump_clock: MockClock, host: GroupHost) -> None:
    once = TransactionGroup("once", 0)
    txn = await host.join(once, once=True)
    await host.groups.commit(once, [txn], once=True)
    assert await host.groups.abort(once, once=True) == 0
    await wait_all_tasks_blocked()
    assert await host.state(txn) is TxnState.COMMITTED


async def test_a_winner_that_timed_out_lets_nothing_be_committed(autojump_clock: MockClock, host: GroupHost) -> None:
    """A batch is visible as a whole or not at all."""
    slow = await host.join(ONE)
    await trio.sleep(59)
    quick = await host.join(ONE)
    await trio.sleep(2)
    assert await host.states(slow, quick) == "ABORTED OPEN"
    with pytest.raises(InvalidTxnStatus, match="already ABORTED"):
        await host.commit(ONE, slow, quick)
    assert await host.state(quick) is TxnState.OPEN
    await host.commit(ONE, quick)


async def test_one_transaction_of_a_group_is_not_committed_alone(autojump_clock: MockClock, host: GroupHost) -> None:
    """It may be aborted alone, and then the group cannot name it."""
    txn = await host.join(ONE)
    with pytest.raises(GroupDecides, match="name its winners"):
        await host.coordinator.end(txn, EndAction.COMMIT)
    await host.coordinator.end(txn, EndAction.ABORT)
    await host.coordinator.end(txn, EndAction.ABORT)
    with pytest.raises(InvalidTxnStatus):
        await host.commit(ONE, txn)
    with pytest.raises(InvalidTxnStatus):
        await host.coordinator.end(txn, EndAction.COMMIT)


async def test_winners_are_of_the_group(autojump_clock: MockClock, host: GroupHost) -> None:
    """A foreign winner changes nothing."""
    mine = await host.join(ONE)
    stranger = await host.coordinator.new_transaction(0, 60_000)
    elsewhere = await host.join(TransactionGroup("other", 1))
    revision = host.metadata.statistics().revision
    for wrong in (stranger, elsewhere, v5_id(0, 999_999)):
        with pytest.raises(TransactionNotFound):
            await host.commit(ONE, mine, wrong)
    with pytest.raises(TooManyWinners):
        await host.commit(ONE, *[mine] * (WINNERS_MAX + 1))
    assert host.metadata.statistics().revision == revision


async def test_names_of_applications_do_not_meet(autojump_clock: MockClock, host: GroupHost) -> None:
    """T32: any text is one name."""
    names = ["a", "a:1", "a%3A1", "a/b", "a\u00e9", "a "]
    txns = [await host.join(TransactionGroup(name, 1)) for name in names]
    await host.commit(TransactionGroup("a", 1), txns[0])
    await wait_all_tasks_blocked()
    assert await host.states(*txns) == "COMMITTED" + " OPEN" * 5


async def test_what_a_later_batch_finds_open_is_ended_as_decided(autojump_clock: MockClock) -> None:
    """Before the record starts the next batch, its decision on the last one is in the headers."""
    host = GroupHost(MemoryStore())
    winner, loser = await host.join(ONE), await host.join(ONE)
    await host.commit(ONE, winner)
    assert await host.states(winner, loser) == "OPEN OPEN", "nobody is there to tell them"
    await host.join(TWO)
    assert await host.states(winner, loser) == "COMMITTED ABORTED"


async def test_tasks_of_a_batch_that_begin_at_once_end_the_last_one_together(autojump_clock: MockClock) -> None:
    """A batch may have a thousand winners, and the next one as many tasks."""
    store = SteeredStore()
    host = GroupHost(store)
    winners = [await host.join(ONE) for _ in range(400)]
    await host.commit(ONE, *winners)
    asked = store.commits

    async def sync(ops: Sequence[Op]) -> None:
        await trio.sleep(0.01)

    store.before = sync
    async with trio.open_nursery() as tasks:
        for _ in range(50):
            tasks.start_soon(host.join, TWO)
    assert {await host.state(txn) for txn in winners} == {TxnState.COMMITTED}
    # Eight change sets, and each task's own: it may find the batch begun by another.
    assert store.commits - asked <= 8 + 2 * 50


async def test_a_batch_that_was_given_up_ends_when_a_later_one_is_begun(autojump_clock: MockClock) -> None:
    host = GroupHost(MemoryStore())
    given_up = await host.join(ONE)
    await host.join(TWO)
    assert await host.state(given_up) is TxnState.ABORTED, "nobody has to wait for its time-out"
    with pytest.raises(InvalidTxnStatus):
        await host.coordinator.end(given_up, EndAction.COMMIT)
    # It was never applied: asked for again, from an older checkpoint, it is tried again.
    again = await host.join(ONE)
    await host.commit(ONE, again)
    assert await host.is_applied(ONE)
    assert not await host.is_applied(TWO)


async def test_a_decision_outlives_the_broker_that_took_it(autojump_clock: MockClock) -> None:
    """D17: the broker is killed between the decision and the headers; the next start, or a deadline, completes it."""
    metadata = MemoryStore()
    dead = GroupHost(metadata)
    winner, loser = await dead.join(ONE), await dead.join(ONE)
    await dead.commit(ONE, winner)
    with pytest.raises(InvalidTxnStatus, match="already COMMITTED"):
        await GroupHost(metadata).coordinator.end(winner, EndAction.ABORT)
    async with running(GroupHost(metadata)) as next_one:
        assert await next_one.states(winner, loser) == "COMMITTED ABORTED"


async def test_what_a_broker_left_open_ends_at_its_deadline(autojump_clock: MockClock, host: GroupHost) -> None:
    """T9, T10: another broker ends it, although it opened nothing itself and was asleep."""
    await trio.sleep(10)
    dead = GroupHost(host.metadata)
    member, alone = await dead.join(ONE), await dead.coordinator.new_transaction(0, 60_000)
    await trio.sleep(59)
    assert await host.states(member, alone) == "OPEN OPEN"
    await trio.sleep(2)
    assert await host.states(member, alone) == "ABORTED ABORTED"


async def test_a_deadline_that_passes_after_the_decision_changes_nothing(autojump_clock: MockClock) -> None:
    """The time-out proposes an abort, but the group has decided otherwise."""
    host = GroupHost(MemoryStore())
    winner, loser = await host.join(ONE), await host.join(ONE)
    await host.commit(ONE, winner)
    await trio.sleep(61)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.transactions.timeout_sweep.run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert await host.states(winner, loser) == "COMMITTED ABORTED"


async def test_members_that_time_out_together_cost_few_change_sets(autojump_clock: MockClock) -> None:
    """T9: each abort rewrites the group's record; two brokers aborting one by one would conflict forever."""
    store = SteeredStore()
    async with running(GroupHost(store)) as host, running(GroupHost(store)) as other:
        txns = [await host.join(ONE) for _ in range(200)]
        later = await other.join(ONE)
        alone = await other.coordinator.new_transaction(0, 60_000)
        commits = store.commits
        await trio.sleep(59)
        kept = await other.join(ONE)
        await trio.sleep(2)
        assert {await host.state(txn) for txn in (*txns, later, alone)} == {TxnState.ABORTED}
        assert await host.state(kept) is TxnState.OPEN
        assert store.commits - commits <= 20
        await other.commit(ONE, kept)


async def test_jobs_that_ran_once_are_forgotten(autojump_clock: MockClock, host: GroupHost) -> None:
    """Old records of one-off jobs are deleted; those with open attempts stay, and so do applications."""
    once = TransactionGroup("once", 0)
    txn = await host.join(once, once=True)
    await host.groups.commit(once, [txn], once=True)
    await host.commit(ONE, await host.join(ONE))
    await host.groups.commit(TransactionGroup("empty", 0), [], once=True)
    await trio.sleep(AGE_MS / 1000 - 1)
    assert len(await keys(host.metadata, *starting_with(KEY_PREFIX))) == 3
    await host.join(TransactionGroup("long", 0), once=True)
    await trio.sleep(2)
    assert await keys(host.metadata, *starting_with(KEY_PREFIX)) == [group_key("app"), group_key("long")]
    await trio.sleep(2 * AGE_MS / 1000)
    assert await keys(host.metadata, *starting_with(KEY_PREFIX)) == [group_key("app")]


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_long_job_that_ran_once_is_remembered_after_its_end(
    autojump_clock: MockClock, host: GroupHost, is_committed: bool
) -> None:
    """D17: its driver repeats the request if the answer was lost, and tasks that do not know yet still begin."""
    once = TransactionGroup("once", 0)
    await host.join(once, once=True)
    await trio.sleep(AGE_MS / 1000 - 30)
    txn = await host.join(once, once=True)
    await trio.sleep(29)
    if is_committed:
        await host.groups.commit(once, [txn], once=True)
    else:
        assert await host.groups.abort(once, once=True) is None
    await trio.sleep(AGE_MS / 1000 - 1)
    if is_committed:
        await host.groups.commit(once, [txn], once=True)
        assert await host.is_applied(once)
    else:
        with pytest.raises(GroupAborted):
            await host.join(once, once=True)
    await trio.sleep(2)
    assert await keys(host.metadata, *starting_with(KEY_PREFIX)) == []


async def turns_later(turns: int) -> None:
    for _ in range(turns):
        await trio.lowlevel.checkpoint()


@every_schedule(turns=st.lists(st.integers(0, 12), min_size=4, max_size=4))
async def test_a_decision_and_whatever_comes_at_the_same_time(turns: list[int]) -> None:
    """D17: two drivers commit, a winner is aborted, a later batch begins, a broker settles: all of it or nothing."""
    metadata = MemoryStore()
    one, other = GroupHost(metadata), GroupHost(metadata)
    winners = [await one.join(ONE) for _ in range(3)]
    answers: dict[str, bool] = {}

    async def commit(host: GroupHost, name: str, after: int, *txns: TxnId) -> None:
        await turns_later(after)
        try:
            await host.commit(ONE, *txns)
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
    """D17, T9: the deadline aborts the winner between the check and the decision, so nothing is decided."""
    store = SteeredStore()
    host, other = GroupHost(store), GroupHost(store)
    winner = await host.join(ONE)
    mock_clock.jump(60)

    async def abort(ops: Sequence[Op]) -> None:
        store.before = None
        await other.groups.abort_due(ONE.application, host.transactions.timeout_sweep.due.is_due)

    store.before = abort
    with pytest.raises(InvalidTxnStatus):
        await host.commit(ONE, winner)
    assert await host.state(winner) is TxnState.ABORTED
    assert not await host.is_applied(ONE)


async def test_a_large_batch_ends_without_reading_its_members_for_each_part(mock_clock: MockClock) -> None:
    """E7, T9: it reads them three times, with any number of parts, for a deadline and for a later batch.

    The first time it finds all of them, which takes some pages.
    """
    host = GroupHost(MemoryStore())
    queries = -(-4 * SETTLE_BATCH_MAX // AT_ONCE) + 2
    members = [await host.join(ONE) for _ in range(4 * SETTLE_BATCH_MAX)]
    mock_clock.jump(60)
    asked = host.transactions.counters.index_queries
    await host.groups.abort_due(ONE.application, host.transactions.timeout_sweep.due.is_due)
    assert host.transactions.counters.index_queries - asked == queries
    assert {await host.state(txn) for txn in members} == {TxnState.ABORTED}
    members = [await host.join(TWO) for _ in range(4 * SETTLE_BATCH_MAX)]
    asked = host.transactions.counters.index_queries
    await host.join(TransactionGroup(ONE.application, 3))
    assert host.transactions.counters.index_queries - asked == queries
    assert {await host.state(txn) for txn in members} == {TxnState.ABORTED}


async def test_a_time_out_stops_at_a_decision_in_its_middle(mock_clock: MockClock) -> None:
    """D17: a winner that is named between two parts is committed, whatever its deadline."""
    store = SteeredStore()
    host, other = GroupHost(store), GroupHost(store)
    members = [await host.join(ONE) for _ in range(2 * SETTLE_BATCH_MAX)]
    mock_clock.jump(60)

    async def decide(_ops: Sequence[Op]) -> None:
        store.after = None
        left = [txn for txn in members if await host.state(txn) is TxnState.OPEN]
        assert len(left) == SETTLE_BATCH_MAX
        await other.commit(ONE, *left)

    store.after = decide
    await host.groups.abort_due(ONE.application, host.transactions.timeout_sweep.due.is_due)
    states = [await host.state(txn) for txn in members]
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
    """E11: this holds at a start and later, also at its members' deadlines."""
    metadata = MemoryStore()
    await metadata.commit([damaged])
    async with running(GroupHost(metadata)) as host:
        winner, loser = await host.join(TransactionGroup("other", 1)), await host.join(TransactionGroup("other", 1))
        await host.commit(TransactionGroup("other", 1), winner)
        await metadata.put(group_key("app"), b"[]")
        await metadata.put(group_key("app"), b"{}")
        late = await host.join(TransactionGroup("other", 2))
        await trio.sleep(100)
        assert await host.states(winner, loser, late) == "COMMITTED ABORTED ABORTED"


DAMAGED = [b"[]", Header(TxnState.OPEN, 10, 1).to_put(v5_id(0, 999), ABSENT).value]
"""The header of a member: one that cannot be decoded, and one that names no group."""


async def damage(metadata: MemoryStore, txn: TxnId, value: bytes) -> None:
    await metadata.commit([Put(header_key(txn), value, indexes=(IndexEntry(BY_GROUP, "app"),))])


@pytest.mark.parametrize("value", DAMAGED)
async def test_a_damaged_member_does_not_stop_its_group(autojump_clock: MockClock, value: bytes) -> None:
    """E11, D17, T9: it stays as it is. The others end as decided, at their deadline, and with a later batch."""
    metadata = MemoryStore()
    async with running(GroupHost(metadata)) as host:
        winner, loser, lost = [await host.join(ONE) for _ in range(3)]
        await damage(metadata, lost, value)
        await host.commit(ONE, winner)
        await wait_all_tasks_blocked()
        assert await host.states(winner, loser) == "COMMITTED ABORTED"
        left = await host.join(TWO)
        third = await host.join(TransactionGroup("app", 3))
        assert await host.states(left) == "ABORTED", "a later batch has begun"
        await trio.sleep(61)
        assert await host.states(third) == "ABORTED"
        found = await metadata.get(header_key(lost))
        assert found is not None
        assert found.value == value


async def test_no_batch_begins_while_a_committed_member_is_damaged(autojump_clock: MockClock) -> None:
    """E11, D17: a later batch would hide that the transaction is committed, and whoever repairs it must learn that."""
    metadata = MemoryStore()
    host = GroupHost(metadata)
    winner, other = await host.join(ONE), await host.join(ONE)
    found = await metadata.get(header_key(winner))
    assert found is not None
    await host.commit(ONE, winner, other)
    await damage(metadata, winner, b"[]")
    with pytest.raises(RecordUnreadable):
        await host.join(TWO)
    assert await host.states(other) == "COMMITTED"
    await metadata.commit([Put(found.key, found.value, indexes=found.indexes)])
    await host.join(TWO)
    assert await host.states(winner) == "COMMITTED"
