"""What the console says of transactions: their ids as clients and commands have them, the oldest first."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from broker.console import transactions
from broker.console.transactions import DECIDED_MAX, SHOWN_MAX, OpenTransactions
from broker.http.lines import running
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT
from txn.headers import KEY_PREFIX, V5_BIT, Header, txn_name, v5_id
from txn.kafka_transaction import KEY_PREFIX as KAFKA
from txn.ops import KEY_PREFIX as OPS
from txn.states import TxnState


def listed(open_ones: OpenTransactions, part: str) -> list[dict[str, Any]]:
    """Return a part that is a list."""
    found = open_ones.parts()[part]
    assert isinstance(found, list)
    return found


@given(st.integers(0, 2**31 - 1), st.integers(0, V5_BIT - 1))
def test_an_id_is_the_two_numbers_of_the_protocol(coordinator: int, number: int) -> None:
    """The record's name leaves out the bit that marks a transaction of this kind. The id has it."""
    txn = v5_id(coordinator, number)
    assert transactions._id(txn_name(txn)) == f"{coordinator}:{number + 2**62}"


async def test_open_ones_are_shown_by_age_and_bounded() -> None:
    store = MemoryStore()
    open_ones = OpenTransactions(store, with_details=True)
    async with running(open_ones):
        for number in range(SHOWN_MAX + 2):
            header = Header(TxnState.OPEN, timeout_ms=9_000, created_ms=5_000 - number)
            await store.commit([header.to_put(v5_id(3, number), ABSENT)])
        await wait_all_tasks_blocked()
        assert open_ones.parts()["total"] == SHOWN_MAX + 2
        shown = listed(open_ones, "open")
        assert len(shown) == SHOWN_MAX
        assert shown[0]["id"] == f"3:{SHOWN_MAX + 1 + 2**62}", "the oldest is the first"
        assert open_ones.summary() == {"open": SHOWN_MAX + 2, "oldest_ms": 5_000 - SHOWN_MAX - 1}


@pytest.mark.parametrize("state", [TxnState.COMMITTED, TxnState.ABORTED])
async def test_a_decided_one_moves_to_the_decisions(state: TxnState) -> None:
    store = MemoryStore()
    open_ones = OpenTransactions(store, with_details=False)
    async with running(open_ones):
        for number in range(DECIDED_MAX + 1):
            txn = v5_id(0, number)
            header = Header(TxnState.OPEN, timeout_ms=9_000, created_ms=1)
            await store.commit([header.to_put(txn, ABSENT)])
            known = await store.get(KEY_PREFIX + txn_name(txn))
            assert known is not None
            await store.commit([header.ended(state, 100 + number).to_put(txn, known.version)])
        await wait_all_tasks_blocked()
        assert open_ones.parts()["total"] == 0
        decided = listed(open_ones, "decided")
        assert len(decided) == DECIDED_MAX
        assert decided[0] == {
            "id": f"0:{DECIDED_MAX + 2**62}",
            "state": state,
            "created_ms": 1,
            "finalized_ms": 100 + DECIDED_MAX,
        }


async def test_participants_come_and_go_with_their_records() -> None:
    store = MemoryStore()
    open_ones = OpenTransactions(store, with_details=True)
    async with running(open_ones):
        await store.commit([Header(TxnState.OPEN, timeout_ms=9, created_ms=1).to_put(v5_id(1, 7), ABSENT)])
        await store.put(f"{OPS}1_7-000", b'{"kind": "write", "segment": "segment://a/b/c/0000-ffff-0"}')
        await store.put(f"{OPS}1_7-001", b'{"kind": "ack", "segment": "s", "subscription": "reader"}')
        await store.put(f"{OPS}1_7-002", b"damaged")
        await wait_all_tasks_blocked()
        (shown,) = listed(open_ones, "open")
        assert shown["participants_total"] == 3
        assert [one["kind"] for one in shown["participants"]] == ["write", "ack", "unreadable"]
        assert shown["participants"][1]["subscription"] == "reader"
        for number in range(3):
            await store.delete(f"{OPS}1_7-00{number}")
        await wait_all_tasks_blocked()
        (shown,) = listed(open_ones, "open")
        assert shown["participants"] == []


async def test_damaged_records_hide_no_others() -> None:
    """The doctor names damaged records. The console goes on with the others."""
    store = MemoryStore()
    open_ones = OpenTransactions(store, with_details=True)
    async with running(open_ones):
        await store.put(f"{KEY_PREFIX}not-a-name", b"{}")
        await store.put(f"{KEY_PREFIX}1_1", b"not JSON")
        await store.put(f"{KAFKA}payments", b"not JSON")
        await store.commit([Header(TxnState.OPEN, timeout_ms=9, created_ms=1).to_put(v5_id(1, 2), ABSENT)])
        await wait_all_tasks_blocked()
        (shown,) = listed(open_ones, "open")
        assert shown["id"] == f"1:{2 + 2**62}"
