"""Power loss and kill at any step of publishing, committing and aborting; then the next owner.

Ledgers and metadata log are on one simulated disk that loses power after a drawn number of operations. The test records
the answers to clients. The next owner must keep these promises.
"""

from dataclasses import dataclass, field
from zlib import crc32

import trio
from hypothesis import event
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from storage.entry import TxnId
from storage.errors import LedgerFailed, LedgerNotMade
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.store import StoreUnavailable, starting_with
from storage.position import EARLIEST, LATEST
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import DATA
from tests.support.metadata import keys_left
from tests.support.schedules import every_schedule
from tests.support.segments import Segment, SegmentHost, segment_host
from txn.errors import OutcomeUnknown, OwnershipLost
from txn.headers import KEY_PREFIX, Header, header_key, txn_of_key
from txn.ops import KEY_PREFIX as OPS
from txn.ops import WriteOp
from txn.states import TxnState

OPENED = 14
"""Operations of the disk until both stores are open."""

OPERATIONS = 80
"""About as many follow in a whole run."""


@dataclass
class History:
    """What the clients know."""

    published: dict[TxnId | None, set[bytes]] = field(default_factory=dict)
    """Payloads with a receipt, by transaction."""
    decided: dict[TxnId, TxnState] = field(default_factory=dict)
    """Decisions that were answered."""
    asked: dict[TxnId, TxnState] = field(default_factory=dict)
    """Decisions that were asked for; no other may come about."""
    readable_max: tuple[int, int] = EARLIEST
    payloads: dict[bytes, TxnId | None] = field(default_factory=dict)
    """Every payload that was sent."""


def power_of(*drawn: object) -> int:
    """Draw when the power is lost, evenly; Hypothesis alone would nearly always draw small numbers."""
    return OPENED + crc32(repr(drawn).encode()) % OPERATIONS


async def client(host: SegmentHost, segment: Segment, history: History, number: int, plan: str) -> None:
    """Publish in one transaction or none, and end it as the plan says."""
    txn = None if plan == "plain" else await host.begin()
    for step in range(2):
        payload = f"{number}.{step}".encode()
        history.payloads[payload] = txn
        await segment.publish(payload, txn)
        history.published.setdefault(txn, set()).add(payload)
        history.readable_max = max(history.readable_max, segment.buffer.readable.value)
    if txn is not None and plan in ("commit", "abort"):
        state = TxnState.COMMITTED if plan == "commit" else TxnState.ABORTED
        history.asked[txn] = state
        await (host.commit if plan == "commit" else host.abort)(txn)
        history.decided[txn] = state


async def run_until_it_breaks(files: SimulatedFiles, history: History, plans: list[str]) -> bool:
    """Return whether the power was lost before the end."""
    broke = False
    try:
        async with EmbeddedStore.open(files, DATA) as metadata, segment_host(metadata, files) as host:
            segment = await host.own()
            async with trio.open_nursery() as clients:
                for number, plan in enumerate(plans):
                    clients.start_soon(client, host, segment, history, number, plan)
            # Materialising goes on by itself.
            await wait_all_tasks_blocked()
            history.readable_max = max(history.readable_max, segment.buffer.readable.value)
    except* (StoreUnavailable, OutcomeUnknown, OwnershipLost, LedgerFailed, LedgerNotMade, OSError):
        broke = True
    return broke


async def check(files: SimulatedFiles, history: History) -> None:
    async with EmbeddedStore.open(files, DATA) as metadata, segment_host(metadata, files) as host:
        recorded = {WriteOp.from_record(record).txn for record in await metadata.scan(*starting_with("/txn/op/"))} | {
            txn_of_key(f"{KEY_PREFIX}{key.rpartition('/')[2]}") for key in await host.abort_keys()
        }
        segment = await host.own()
        states = {}
        for record in await metadata.scan(*starting_with(KEY_PREFIX)):
            states[txn_of_key(record.key)] = Header.from_value(record.value).state
        for txn, state in history.decided.items():
            assert states[txn] is state, "an answered decision is lost or changed"
        for txn, state in states.items():
            assert state is TxnState.OPEN or state is history.asked[txn]
        entries = await segment.ledger.read(EARLIEST, upto=LATEST, entries_max=1000, bytes_max=1_000_000)
        for ledger in {entry.position.ledger for entry in entries}:
            recorded |= {span.txn for span in await segment.ledger.load_aborted(ledger)}
        for entry in entries:
            assert entry.txn == history.payloads[entry.payload]
            assert entry.txn is None or entry.txn in recorded or states[entry.txn] is TxnState.COMMITTED
        stored = {entry.payload for entry in entries}
        assert len(stored) == len(entries)
        for payloads in history.published.values():
            assert payloads <= stored, "an acknowledged publish is lost"

        await wait_all_tasks_blocked()
        assert segment.buffer.readable.value >= history.readable_max
        open_ones = [txn for txn, state in states.items() if state is TxnState.OPEN]
        for payload in await segment.visible():
            of = history.payloads[payload]
            assert of is None or states[of] is TxnState.COMMITTED
        for txn in open_ones:
            await host.abort(txn)
        await wait_all_tasks_blocked()
        expected = {
            payload
            for payload in stored
            if (of := history.payloads[payload]) is None or states[of] is TxnState.COMMITTED
        }
        assert set(await segment.visible()) == expected
        assert segment.buffer.readable.value == segment.ledger.confirmed.value
        assert await keys_left(metadata, OPS) == [], "everything is applied"
        for txn in states:
            await metadata.delete(header_key(txn))
        segment.scope.cancel()
        again = await host.own()
        assert set(await again.visible()) == expected, "the headers are not needed any more"


PLANS = st.lists(st.sampled_from(["commit", "abort", "open", "plain"]), min_size=1, max_size=5)


@every_schedule(
    examples_max=40,
    plans=PLANS,
    seed=st.integers(0, 1 << 16),
    lose_unsynced=st.booleans(),
)
async def test_no_crash_loses_a_commit_or_shows_an_abort(plans: list[str], seed: int, lose_unsynced: bool) -> None:
    """D1, D3, D7, D8, T18, T25, T26: at any disk operation, with any subset of unsynced writes."""
    files = SimulatedFiles(seed=seed)
    history = History()
    files.lose_power_after(power_of(seed, plans))
    event(f"broke: {await run_until_it_breaks(files, history, plans)}")
    await check(files.crash() if lose_unsynced else files.kill(), history)


@every_schedule(examples_max=15, plans=PLANS, seed=st.integers(0, 1 << 16))
async def test_a_crash_in_the_middle_of_a_takeover_is_harmless(plans: list[str], seed: int) -> None:
    """T26: the owner after that takes over correctly."""
    files = SimulatedFiles(seed=seed)
    history = History()
    await run_until_it_breaks(files, history, plans)
    crashes = 0
    for turn in range(2):
        files = files.crash()
        files.lose_power_after(power_of(seed, plans, turn) // 2)
        try:
            async with EmbeddedStore.open(files, DATA) as metadata, segment_host(metadata, files) as host:
                await host.own()
                await wait_all_tasks_blocked()
        except* (StoreUnavailable, OutcomeUnknown, OwnershipLost, LedgerFailed, LedgerNotMade, OSError):
            crashes += 1
    event(f"{crashes} crashes in takeovers")
    await check(files.crash(), history)
