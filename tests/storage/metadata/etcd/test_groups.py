"""Change sets that share a transaction of etcd: which may, what each is answered, and that sharing has no effect."""

import random

import pytest
import trio

from storage.metadata.etcd.generated import etcd_pb2 as pb
from storage.metadata.etcd.keys import Keys
from storage.metadata.etcd.requests import (
    ETCD_OPERATIONS_MAX,
    GROUP_MAX,
    OPERATIONS_MAX,
    ChangeSet,
    ChangeSetBatch,
    Counter,
    CounterMoved,
    Made,
    MadeEarlier,
    Slot,
    SlotLost,
    TakenKey,
)
from storage.metadata.store import ABSENT, Check, Committed, Conflict, Delete, DeleteRange, Op, Put, PutSequential
from tests.support.etcd import etcd_store
from tidewire.cli.local_etcd import EtcdProcess

KEYS = Keys("/t")
SLOT = Slot(b"/t/w1/1", 7, 3)
COUNTER = Counter(10, 5)


def group_of(*change_sets: list[Op]) -> ChangeSetBatch:
    group = ChangeSetBatch(KEYS)
    for ops in change_sets:
        assert group.add(ChangeSet(ops, KEYS), 100)
    return group


def stored(key: bytes, *, revision: int = 1, version: int = 1, value: bytes = b"") -> pb.KeyValue:
    return pb.KeyValue(key=key, mod_revision=revision, version=version, value=value)


def found(*values: pb.KeyValue) -> pb.ResponseOp:
    return pb.ResponseOp(response_range=pb.RangeResponse(kvs=values))


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ([Put("/a", b"")], [Put("/b", b"")], True),
        ([Put("/a", b"")], [Put("/a", b"")], False),
        ([Put("/a", b"")], [Delete("/a")], False),
        ([Put("/a", b"")], [Check("/a", 1), Put("/b", b"")], False),
        ([Check("/a", 1), Put("/b", b"")], [Put("/a", b"")], False),
        ([Check("/a", 1), Put("/b", b"")], [Check("/a", 1), Put("/c", b"")], True),
        ([DeleteRange("/a", "/c")], [Put("/b", b"")], False),
        ([DeleteRange("/a", "/c")], [Check("/b", 1), Put("/d", b"")], False),
        ([DeleteRange("/a", "/c")], [Put("/c", b"")], True),
        ([Put("/b", b"")], [DeleteRange("/a", "/c")], False),
        ([Check("/b", 1), Put("/d", b"")], [DeleteRange("/a", "/c")], False),
        ([DeleteRange("/a", "/c")], [DeleteRange("/b", "/d")], False),
        ([DeleteRange("/a", "/c")], [DeleteRange("/c", "/d")], True),
        ([PutSequential("/op", b"", "p")], [PutSequential("/op", b"", "p")], True),
        ([PutSequential("/op", b"", "p")], [Put("/op-" + "5" * 20, b"")], False),
        ([PutSequential("/op", b"", "p")], [Check("/op-" + "9" * 20, ABSENT), Put("/x", b"")], False),
        ([PutSequential("/op", b"", "p")], [DeleteRange("/o", "/p")], False),
        ([DeleteRange("/o", "/p")], [PutSequential("/op", b"", "p")], False),
        ([Put("/op-" + "5" * 20, b"")], [PutSequential("/op", b"", "p")], False),
        ([Put("/op", b"")], [PutSequential("/op", b"", "p")], True),
    ],
)
def test_who_may_share_a_transaction(first: list[Op], second: list[Op], together: bool) -> None:
    """M1, M24: only change sets that do not write what another one writes or requires."""
    group = ChangeSetBatch(KEYS)
    assert group.add(ChangeSet(first, KEYS), 100)
    assert group.add(ChangeSet(second, KEYS), 100) is together
    assert len(group.members) == 1 + together


def test_a_group_stays_within_etcds_limit() -> None:
    """M25: the transaction's own list and its longest inner list count together."""
    wide = [Put(f"/{number}", b"") for number in range(OPERATIONS_MAX)]
    group = group_of(list(wide))
    assert not group.add(ChangeSet([Put("/x", b"")], KEYS), 100)
    narrow = ChangeSetBatch(KEYS)
    while narrow.add(ChangeSet([Put(f"/{len(narrow.members)}", b"")], KEYS), 100):
        pass
    assert len(narrow.members) == GROUP_MAX
    for each in (group, narrow):
        request = each.request(SLOT, COUNTER)
        inner = [op.request_txn for op in request.success if op.HasField("request_txn")]
        width = max(len(txn.success) for txn in inner)
        assert len(request.success) + width <= ETCD_OPERATIONS_MAX


def test_each_member_gets_its_own_answer() -> None:
    """M1, M5: made, in conflict, or to be retried; numbers skip change sets that were not made."""
    group = group_of(
        [PutSequential("/op", b"", "p"), Put("/a", b"")],
        [Check("/b", 4), Put("/c", b"")],
        [PutSequential("/op", b"", "p")],
        [PutSequential("/op", b"", "p")],
    )
    refused = pb.TxnResponse(responses=[pb.ResponseOp(), found(stored(b"/t/r/b", revision=9))])
    answers = [
        pb.TxnResponse(succeeded=True),
        refused,
        pb.TxnResponse(responses=[pb.ResponseOp()]),
        pb.TxnResponse(succeeded=True),
    ]
    response = pb.TxnResponse(
        header=pb.ResponseHeader(revision=20),
        succeeded=True,
        responses=[pb.ResponseOp()] * 2 + [pb.ResponseOp(response_txn=answer) for answer in answers],
    )
    made = group.judge(response, SLOT, COUNTER)
    assert isinstance(made, Made)
    first, second, third, fourth = made.outcomes
    assert first == Committed(20, (f"/op-{11:020}", "/a"))
    assert isinstance(second, Conflict)
    assert (second.key, second.expected, second.actual) == ("/b", 4, 9)
    assert isinstance(third, TakenKey)
    assert fourth == Committed(20, (f"/op-{13:020}",))
    assert made.counter == Counter(13, 20)


def test_what_a_copy_finds() -> None:
    """M22: an earlier copy was made, with some members; or the counter moved; or its slot is gone."""
    group = group_of([PutSequential("/op", b"", "p")], [Check("/b", 4), Put("/c", b"")])

    def judge(slot: list[pb.KeyValue], counter: list[pb.KeyValue]) -> object:
        return group.judge(pb.TxnResponse(responses=[found(*slot), found(*counter)]), SLOT, COUNTER)

    same = stored(KEYS.counter, revision=5, value=b"10")
    earlier = judge(
        [
            stored(SLOT.key, revision=30, version=4),
            stored(SLOT.marker(0), revision=12),
            stored(SLOT.marker(1), revision=30),
        ],
        [same],
    )
    assert earlier == MadeEarlier([Committed(30, (f"/op-{11:020}",)), None], Counter(11, 30))
    used = stored(SLOT.key, revision=12, version=3)
    assert judge([used], [stored(KEYS.counter, revision=8, value=b"15")]) == CounterMoved(Counter(15, 8))
    for lost in ([], [stored(SLOT.key, version=1)], [stored(SLOT.key, version=5)]):
        assert judge(lost, [same]) == SlotLost()


async def test_no_two_writers_skew_each_other(etcd_server: EtcdProcess) -> None:
    """M1, M2: each of two change sets requires what the other writes: one of them is always refused."""
    async with etcd_store(etcd_server.endpoint) as store:
        for _ in range(30):
            versions = [await store.put(key, b"") for key in ("/a", "/b")]
            made: list[str] = []

            async def write(mine: str, other: str, version: int, made: list[str] = made) -> None:
                try:
                    await store.commit([Put(mine, b""), Check(other, version)])
                except Conflict:
                    return
                made.append(mine)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, "/a", "/b", versions[1])
                nursery.start_soon(write, "/b", "/a", versions[0])
            assert len(made) == 1


async def test_transfers_keep_the_sum(etcd_server: EtcdProcess) -> None:
    """M1, M26: many run at once on a few accounts, and each reads two; they may share transactions."""
    chance = random.Random(5)
    async with etcd_store(etcd_server.endpoint) as store:
        accounts = [f"/account/{number}" for number in range(8)]
        await store.commit([Put(account, b"100") for account in accounts])
        done = attempts = 0

        async def transfer(source: str, target: str, amount: int) -> None:
            nonlocal attempts, done
            while True:
                attempts += 1
                records = {record.key: record for record in await store.scan("/account/", "/account0")}
                assert sum(int(record.value) for record in records.values()) == 800
                ops: list[Op] = [
                    Put(key, b"%d" % (int(records[key].value) + change), records[key].version)
                    for key, change in ((source, -amount), (target, amount))
                ]
                ops.append(PutSequential("/log", b"", "log"))
                try:
                    await store.commit(ops)
                except Conflict:
                    continue
                done += 1
                return

        async with trio.open_nursery() as nursery:
            for _ in range(80):
                source, target = chance.sample(accounts, 2)
                nursery.start_soon(transfer, source, target, chance.randint(1, 30))
        assert done == len(await store.scan("/log", "/log~")) == 80
        assert store.statistics().extra["groups"] < attempts
