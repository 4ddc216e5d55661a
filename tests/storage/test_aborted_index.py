"""The aborted-transaction index: it is read as written, and damage is never read as "none"."""

import itertools
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from storage import aborted_index
from storage.aborted_index import AbortedSpan, CorruptIndex
from storage.entry import TxnId
from storage.errors import LedgerCorrupt
from storage.ledger_folder import LedgerFolder
from tests.support.disk import SimulatedFiles

words = st.integers(0, 2**64 - 1)
numbers = st.integers(0, 2**62)
spans = st.lists(st.builds(AbortedSpan, st.builds(TxnId, words, words), numbers, numbers), max_size=20)


@given(numbers, spans)
def test_what_was_written_is_read(ledger: int, written: list[AbortedSpan]) -> None:
    """The content depends on the spans alone, so writing it again gives the same bytes."""
    data = aborted_index.encode(ledger, written)
    assert aborted_index.decode(ledger, data) == tuple(sorted(set(written)))
    assert aborted_index.encode(ledger, reversed(written)) == data


@given(spans, st.data())
def test_any_damage_is_found(written: list[AbortedSpan], data: st.DataObject) -> None:
    """One flipped bit, or a cut at any byte, is damage and not an empty index."""
    whole = aborted_index.encode(7, written)
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptIndex):
        aborted_index.decode(7, bytes(flipped))
    with pytest.raises(CorruptIndex):
        aborted_index.decode(7, whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(CorruptIndex):
        aborted_index.decode(8, whole)


OWNER = 5


def folder() -> tuple[SimulatedFiles, LedgerFolder]:
    files = SimulatedFiles()
    path = Path("/data/ledgers")
    files.make_dir(path)
    return files, LedgerFolder(files, path)


def test_an_index_is_durable_when_it_is_written() -> None:
    files, ledgers = folder()
    first = AbortedSpan(TxnId(1, 2), 3, 4)
    second = AbortedSpan(TxnId(5, 6), 7, 8)
    ledgers.store_aborted(9, [first], OWNER)
    ledgers.store_aborted(9, [second, first], OWNER)
    survived = LedgerFolder(files.crash(), ledgers.path)
    assert survived.load_aborted(9, OWNER, 2) == (first, second)
    assert survived.unknown_names() == []


def test_a_damaged_index_is_refused_with_its_file() -> None:
    files, ledgers = folder()
    ledgers.store_aborted(9, [AbortedSpan(TxnId(1, 2), 3, 4)], OWNER)
    path = ledgers.aborted_path(9, OWNER)
    files.open(path).write_at(30, b"\xff")
    with pytest.raises(LedgerCorrupt, match=str(path)):
        ledgers.load_aborted(9, OWNER, 1)


def test_a_stale_owner_that_wakes_up_changes_no_index_that_is_read() -> None:
    """C9, T19: it stops at any operation, and goes on once the next owner has written a longer index."""
    first, second = AbortedSpan(TxnId(1, 2), 3, 4), AbortedSpan(TxnId(5, 6), 7, 8)
    stops = 0
    while True:
        files, ledgers = folder()
        stale_files = files.process()
        countdown = itertools.count(-stops)

        def replace(_operation: str, _path: Path) -> None:
            if next(countdown) == 0:  # noqa: B023
                ledgers.store_aborted(9, [first, second], OWNER + 1)  # noqa: B023

        stale_files.before = replace
        LedgerFolder(stale_files, ledgers.path).store_aborted(9, [first], OWNER)
        if next(countdown) <= 0:
            break
        assert ledgers.load_aborted(9, OWNER + 1, 2) == (first, second)
        stops += 1
    assert stops > 4, "an index takes several operations"


def test_an_index_goes_with_its_ledger() -> None:
    """E16: with its indexes by every owner, named in its record or not."""
    files, ledgers = folder()
    ledgers.make([9, 10])
    for ledger in (9, 10):
        for owner in (OWNER, OWNER + 1):
            ledgers.store_aborted(ledger, [AbortedSpan(TxnId(1, 2), 3, 4)], owner)
    kept = [name for name in files.names(ledgers.path) if name.startswith(f"{10:020}")]
    ledgers.remove([9, 8])
    assert files.names(ledgers.path) == kept
