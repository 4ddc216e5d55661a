"""Snapshots of a log with markers: what they have, and those of other releases."""

import struct

import orjson
import pytest

from storage.aborted_offsets import AbortedOffsets, UnknownIndexVersion, encode
from storage.position import Position
from txn.marked_log import Ended, MarkedLog, SnapshotDamaged, UnknownSnapshotVersion, aborts_before
from txn.producer_rows import ROW_SIZE
from txn.producer_states import PRODUCERS_MAX, Batch, EndMarker
from txn.stable_offset import Place

LEDGER = 4


def written() -> MarkedLog:
    """Producer 1 has aborted, producer 2 has an open transaction, and producer 3 writes without one."""
    log = MarkedLog()
    log.enter(LEDGER)
    for offset, (producer, in_txn) in enumerate([(1, True), (2, True), (3, False), (2, True)]):
        log.take(Batch(producer, 5, offset, offset, in_txn), Place(offset, Position(LEDGER, offset)), 1_000 + offset)
    log.take(Ended(EndMarker(1, 6, 2, bumps_epoch=True), False), Place(4, Position(LEDGER, 4)), 1_004)
    return log


def same(one: MarkedLog, other: MarkedLog) -> bool:
    return (
        dict(one.producers) == dict(other.producers)
        and one.stable.open_transactions == other.stable.open_transactions
        and one.snapshot(5) == other.snapshot(5)
    )


def test_the_next_owner_knows_the_same() -> None:
    """K12, K17, K26: producers, open transactions and aborts."""
    log = written()
    made = MarkedLog.from_snapshot(log.snapshot(5), LEDGER)
    assert same(made, log)
    assert made.stable.open_transactions == {2: Place(1, Position(LEDGER, 1))}
    assert list(made.aborts.index.from_offset(0)) == [AbortedOffsets(1, 0, 4, 1)]
    ended = Ended(EndMarker(2, 5, 2, bumps_epoch=False), True)
    for each in (made, log):
        each.take(ended, Place(5, Position(LEDGER, 5)), 1_005)
    assert same(made, log)
    assert MarkedLog.from_snapshot(made.snapshot(6), LEDGER).stable.open_transactions == {}


def test_a_snapshot_of_version_0_is_read() -> None:
    """K26: an upgrade forgets no producer and no open transaction."""
    log = written()
    index = encode(AbortedOffsets(1, 0, 4, 1))
    rows = [
        [producer_id, state.epoch, state.coordinator_epoch, state.last_ms, [list(kept) for kept in state.batches]]
        for producer_id, state in log.producers
    ]
    rest = {"ledger": LEDGER, "last_stable": 1, "producers": rows, "open": [[2, 1, LEDGER, 1]]}
    payload = struct.pack(">I", len(index)) + index + orjson.dumps(rest)
    assert same(MarkedLog.from_snapshot(payload, LEDGER), log)
    assert list(aborts_before(payload).index.from_offset(0)) == [AbortedOffsets(1, 0, 4, 1)]


def test_a_snapshot_of_a_later_version_is_refused() -> None:
    """K18: it is not taken for a damaged one, which would be made again."""
    payload = bytearray(MarkedLog().snapshot(0))
    payload[4] += 1
    with pytest.raises(UnknownSnapshotVersion, match="version 2"):
        MarkedLog.from_snapshot(bytes(payload), LEDGER)
    assert issubclass(UnknownSnapshotVersion, UnknownIndexVersion), "so its log is not opened"


def test_a_part_of_a_snapshot_is_damaged() -> None:
    """E10: wherever it ends."""
    payload = written().snapshot(5)
    for size in range(len(payload)):
        with pytest.raises(SnapshotDamaged):
            MarkedLog.from_snapshot(payload[:size], LEDGER)


def test_a_snapshot_of_many_producers_copies_their_rows() -> None:
    """E7: one piece of memory, and no object for each of them. It took 1.7 s to write 100,000 as JSON."""
    log = MarkedLog()
    log.enter(LEDGER)
    for producer in range(PRODUCERS_MAX):
        log.producers.note(Batch(producer, 0, 0, 0, False), producer, 1_000)
    payload = log.snapshot(PRODUCERS_MAX)
    assert payload[9 : 9 + PRODUCERS_MAX * ROW_SIZE] == log.producers.rows.data
    assert len(payload) - PRODUCERS_MAX * ROW_SIZE < 100
    assert len(MarkedLog.from_snapshot(payload, LEDGER).producers) == PRODUCERS_MAX
