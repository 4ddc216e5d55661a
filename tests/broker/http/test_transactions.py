"""Administrators list open transactions, look at one, and abort it, at any broker."""

import pytest
from trio.testing import wait_all_tasks_blocked

from storage.metadata.store import Put
from storage.position import EARLIEST
from storage.ranges import EntryAck
from tests.broker.test_administration_anywhere import served, spread
from tests.support.http import request
from tests.support.rooms import payloads, publish
from txn.errors import TransactionEnded
from txn.inspection import LISTED_MAX
from txn.states import EndAction

PREFIX = "/admin/v3/transactions"
TIMEOUT_MS = 60_000


async def test_open_transactions_are_listed_by_age_with_their_participants() -> None:
    """T1, T22: any broker lists those of all coordinators."""
    async with served("one", "two") as ((one, first), (_two, second)):
        names = await spread(one, _two)
        topic = await one.topics.get(names[0])
        older = await one.coordinator.new_transaction(0, TIMEOUT_MS)
        newer = await one.coordinator.new_transaction(1, TIMEOUT_MS)
        await publish(topic, b"open", older)
        position = topic.ledger.next_after(EARLIEST)
        await topic.acknowledge_in_transaction(topic.subscriptions["QUEUE"], newer, [EntryAck(position)])
        for address in (first, second):
            listed = (await request(address, "GET", PREFIX)).json
            assert [one["txnId"] for one in listed] == [f"({txn.most},{txn.least})" for txn in (older, newer)]
            assert [one["status"] for one in listed] == ["OPEN", "OPEN"]
            assert listed[0]["producedPartitions"].keys() == {str(names[0])}
            assert listed[0]["ackedPartitions"] == {}
            assert listed[1]["producedPartitions"] == {}
            assert listed[1]["ackedPartitions"] == {str(names[0]): {"QUEUE": {}}}
            assert listed[0]["timeoutAt"] - listed[0]["openTimestamp"] == TIMEOUT_MS
            assert (await request(address, "GET", f"{PREFIX}?limit=1")).json == listed[:1]
            assert (await request(address, "GET", f"{PREFIX}?coordinatorId=1")).json == listed[1:]
            slow = (await request(address, "GET", f"{PREFIX}/slowTransactions/0")).json
            assert list(slow.values()) == listed
            # The test's clock stands still, so that none of them is a second old.
            assert (await request(address, "GET", f"{PREFIX}/slowTransactions/1000")).json == {}
            assert (await request(address, "GET", f"{PREFIX}?coordinatorId=99")).status == 404
        await one.metadata.commit([Put("/txn/op/0_0-00000000000000000099", b"damaged")])
        shown = (await request(second, "GET", f"{PREFIX}/transactionMetadata/{older.most}/{older.least}")).json
        assert (shown["unreadableRecords"], shown["producedPartitions"].keys()) == (1, {str(names[0])})


async def test_an_administrator_aborts_an_open_transaction_and_no_decided_one() -> None:
    """T7, T8: it is the coordinator's compare-and-set, so what was decided first stays."""
    async with served("one", "two") as ((one, first), (two, second)):
        names = await spread(one, two)
        topic = await one.topics.get(names[0])
        open_one = await one.coordinator.new_transaction(0, TIMEOUT_MS)
        committed = await one.coordinator.new_transaction(0, TIMEOUT_MS)
        await publish(topic, b"aborted", open_one)
        await one.coordinator.end(committed, EndAction.COMMIT)
        path = f"{PREFIX}/abortTransaction/{open_one.most}/{open_one.least}"
        for address in (second, first):
            assert (await request(address, "POST", path)).status == 204
        await wait_all_tasks_blocked()
        assert await payloads(topic) == [b"a"]
        with pytest.raises(TransactionEnded):
            await publish(topic, b"late", open_one)
        shown = (await request(first, "GET", path.replace("abortTransaction", "transactionMetadata"))).json
        assert shown["status"] == "ABORTED"
        refused = await request(second, "POST", f"{PREFIX}/abortTransaction/{committed.most}/{committed.least}")
        assert refused.status == 409
        # As `tidewire transactions` takes the id.
        assert f"transaction {committed.most}:{committed.least}: it is already COMMITTED" in refused.reason
        assert (await request(first, "GET", PREFIX)).json == []
        assert (await request(first, "POST", f"{PREFIX}/abortTransaction/0/7")).status == 404
        assert (await request(first, "POST", f"{PREFIX}/abortTransaction/0/x")).status == 412


async def test_a_long_list_has_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """E8: a limit beyond the bound is cut to it."""
    assert LISTED_MAX == 1000
    monkeypatch.setattr("txn.inspection.LISTED_MAX", 3)
    monkeypatch.setattr("txn.inspection._PAGE", 2)
    async with served("one") as ((one, first),):
        made = [await one.coordinator.new_transaction(0, TIMEOUT_MS) for _ in range(5)]
        listed = (await request(first, "GET", f"{PREFIX}?limit=1000")).json
        assert [found["txnId"] for found in listed] == [f"({txn.most},{txn.least})" for txn in made[:3]]
