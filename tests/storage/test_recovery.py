import itertools
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import storage.recovery as recovery
from storage.errors import JournalFileDamaged
from storage.journal_block import LABEL_SIZE, Part, encode_block, encode_label
from storage.recovery import (
    JOURNAL_TABLE,
    LABEL_TABLE,
    Decision,
    Finding,
    JournalReader,
    RecoveredBlock,
    State,
    decide,
    decide_file,
)
from storage.sector import SECTOR
from tests.support.ledgers import part, written

STREAM = 0x1234_5678_9ABC_DEF0


class Written:
    """Journal files as a writer leaves them: a label, blocks, then zeros."""

    def __init__(self, size: int = 64 * 1024) -> None:
        self.size = size
        self.files: list[bytearray] = []
        self.next_file()
        self.blocks: list[tuple[int, int, int, list[Part]]] = []
        """Number of the file, begin, end and parts."""
        self._sequence = 0
        self._crc = 0

    def block(self, *parts: Part) -> None:
        header, block = encode_block(
            written(*parts), [], stream=STREAM, sequence=self._sequence, previous_crc=self._crc, file_offset=self.offset
        )
        self._sequence += 1
        self._crc = header.body_crc
        self.files[-1][self.offset : self.offset + header.size] = b"".join(block)
        self.blocks.append((len(self.files) - 1, self.offset, self.offset + header.size, list(parts)))
        self.offset += header.size

    def next_file(self) -> None:
        self.files.append(bytearray(encode_label(str(len(self.files))).ljust(self.size, b"\0")))
        self.offset = LABEL_SIZE

    def read(self) -> Iterator[RecoveredBlock]:
        paths = [Path(f"/{number}") for number in range(len(self.files))]
        return JournalReader(STREAM, 0, paths, lambda path: bytes(self.files[int(path.name)])).blocks()

    def recovered(self) -> list[list[Part]]:
        return [list(block.parts) for block in self.read()]


def three_blocks() -> Written:
    journal = Written()
    journal.block(part(1, b"one"), part(2, b"two"))
    journal.block(part(3, b"x" * 100))
    journal.block(part(1, b"three"), part(4, b"four"))
    return journal


def flip(data: bytearray, bit: int) -> None:
    data[bit // 8] ^= 1 << bit % 8


def test_the_table_in_the_docstring_is_the_table_in_the_code() -> None:
    assert recovery.__doc__ is not None
    states = {state.name.lower(): state for state in State}
    answers = {"yes": True, "no": False, "-": None}
    rows = []
    for line in recovery.__doc__.splitlines():
        cells = re.match(r"    (\S+) +(\S+) +(\S+) +(yes|no|-) +(yes|no|-) +\| ([A-Z]+)", line)
        if cells:
            where = [states.get(cell) for cell in cells.groups()[:3]]
            rows.append((*where, answers[cells[4]], answers[cells[5]], Decision[cells[6]]))
    assert rows == [tuple(row[:6]) for row in JOURNAL_TABLE]


def test_the_table_of_labels_in_the_docstring_is_the_one_in_the_code() -> None:
    assert recovery.__doc__ is not None
    states = {state.name.lower(): state for state in State}
    found = re.findall(
        r"^    (\S+) +(\S+) +\| ([A-Z_]+) ", recovery.__doc__.partition("**A journal**")[0], re.MULTILINE
    )
    rows = [(states[label], states.get(block), Decision[decision]) for label, block, decision in found]
    assert rows == [tuple(row[:3]) for row in LABEL_TABLE]


def test_every_finding_is_decided_and_no_row_is_idle() -> None:
    findings = (Finding(*fields) for fields in itertools.product(State, State, State, (True, False), (True, False)))
    assert {decide(finding) for finding in findings} == set(JOURNAL_TABLE)
    labels = (State.GOOD, State.DAMAGED, State.MISPLACED)
    assert {decide_file(*states) for states in itertools.product(labels, State)} == set(LABEL_TABLE)


def test_what_was_written_is_read_across_files() -> None:
    journal = three_blocks()
    journal.next_file()
    journal.block(part(5, b"five"))
    journal.next_file()
    assert journal.recovered() == [parts for _file, _begin, _stop, parts in journal.blocks]


def test_d9_a_journal_cut_at_any_byte_ends_with_its_last_whole_block() -> None:
    """D9: an incomplete block was not confirmed."""
    for size in range(LABEL_SIZE, three_blocks().offset + 1):
        journal = three_blocks()
        del journal.files[0][size:]
        assert journal.recovered() == [parts for _file, _begin, stop, parts in journal.blocks if stop <= size]


def test_d9_no_flipped_bit_loses_more_than_the_batch_it_is_in_and_that_is_said() -> None:
    """D9: this includes the last block, which no later one proves."""
    whole = three_blocks()
    expected = [each for _file, _begin, _stop, parts in whole.blocks for each in parts]
    named = 0
    for bit in range(LABEL_SIZE * 8, whole.offset * 8):
        journal = three_blocks()
        flip(journal.files[0], bit)
        blocks = list(journal.read())
        found = [each for block in blocks for each in block.parts]
        damaged = [each for block in blocks for each in block.damaged]
        lost = [each for each in expected if each not in found]
        assert [(each.ledger, each.offset) for each in lost] == [(each.ledger, each.ledger_offset) for each in damaged]
        assert len(found) + len(lost) == len(expected)
        assert len(lost) <= 1
        named += len(lost)
    assert named, "some bits belong to batches"


def test_no_flipped_bit_of_a_label_loses_anything() -> None:
    """D9: the first block says which file it is."""
    for bit in range(LABEL_SIZE * 8):
        journal = three_blocks()
        flip(journal.files[0], bit)
        assert journal.recovered() == [parts for _file, _begin, _stop, parts in journal.blocks]


def test_a_file_that_nothing_identifies_is_not_an_empty_one() -> None:
    """E3: zeros, a damaged label with nothing after it, and another journal's prepared file."""
    for label in (bytes(LABEL_SIZE), b"\xff" + encode_label("1")[1:], encode_label("2")):
        journal = three_blocks()
        journal.next_file()
        journal.files[1][:LABEL_SIZE] = label
        with pytest.raises(JournalFileDamaged) as raised:
            journal.recovered()
        assert (raised.value.path, raised.value.offset) == (Path("/1"), 0)


def test_the_first_file_is_missed_where_its_unwritten_copy_stands() -> None:
    """E3: it is known which block comes first."""
    journal = three_blocks()
    journal.next_file()
    journal.block(part(5, b"five"))
    journal.files[0][LABEL_SIZE:] = bytes(journal.size - LABEL_SIZE)
    with pytest.raises(JournalFileDamaged) as raised:
        journal.recovered()
    assert (raised.value.path, raised.value.offset) == (Path("/1"), LABEL_SIZE)


def test_bits_that_flip_where_nothing_was_written_change_nothing() -> None:
    journal = three_blocks()
    for bit in range(journal.offset * 8, journal.offset * 8 + 500):
        damaged = three_blocks()
        flip(damaged.files[0], bit)
        assert damaged.recovered() == [parts for _file, _begin, _stop, parts in journal.blocks]


@pytest.mark.parametrize("payload", [b"x" * 4000, bytes(4000), b"x" * 900 + bytes(1100) + b"y" * 2000])
@pytest.mark.parametrize("begin", [0, 300, SECTOR - 10])
def test_d9_a_power_loss_inside_an_unconfirmed_block_is_a_torn_tail(payload: bytes, begin: int) -> None:
    """D9: with any subset of its sectors on the disk, with and without zeros in the payload."""
    journal = Written()
    filler = part(9, b"f" * begin)
    journal.block(filler)
    journal.block(part(1, payload))
    _file, start, stop, parts = journal.blocks[-1]
    after_all = bytes(journal.files[0])
    before = after_all[:start] + bytes(len(after_all) - start)
    sectors = range(start // SECTOR, (stop - 1) // SECTOR + 1)
    rightly_empty = {
        number for number in sectors if after_all[number * SECTOR :][:SECTOR] == before[number * SECTOR :][:SECTOR]
    }
    rng = random.Random(1)
    for _ in range(200):
        survivors = {number for number in sectors if rng.random() < rng.choice((0.1, 0.5, 0.9, 1.0))}
        torn = bytearray(before)
        for number in survivors:
            torn[number * SECTOR : (number + 1) * SECTOR] = after_all[number * SECTOR : (number + 1) * SECTOR]
        journal.files[0] = torn
        is_whole = survivors | rightly_empty >= set(sectors)
        assert journal.recovered() == ([[filler], parts] if is_whole else [[filler]])


@pytest.mark.parametrize("payload", [b"x" * 4000, bytes(4000)])
def test_d9_a_flipped_bit_in_the_last_block_is_corruption_though_nothing_follows(payload: bytes) -> None:
    """D9: the block is complete, so it may have been confirmed, and the ledger is named."""
    journal = Written()
    journal.block(part(1, payload))
    _file, begin, stop, _parts = journal.blocks[-1]
    for bit in range((begin + 200) * 8, (stop - 10) * 8, 97):
        damaged = Written()
        damaged.block(part(1, payload))
        flip(damaged.files[0], bit)
        (block,) = damaged.read()
        assert [each.ledger for each in block.damaged] == [1]


def test_a_lost_block_before_a_later_one_stops_the_start() -> None:
    for lost in (0, 1):
        journal = three_blocks()
        _file, begin, stop, _parts = journal.blocks[lost]
        journal.files[0][begin:stop] = bytes(stop - begin)
        with pytest.raises(JournalFileDamaged) as raised:
            journal.recovered()
        assert (raised.value.path, raised.value.offset) == (Path("/0"), begin)


def test_a_block_lost_from_the_end_of_a_file_is_missed_by_the_next_file() -> None:
    journal = three_blocks()
    _file, begin, stop, _parts = journal.blocks[-1]
    journal.next_file()
    journal.block(part(5, b"five"))
    journal.files[0][begin:stop] = bytes(stop - begin)
    with pytest.raises(JournalFileDamaged) as raised:
        journal.recovered()
    assert (raised.value.path, raised.value.offset) == (Path("/1"), LABEL_SIZE)


def test_a_torn_looking_block_with_a_later_file_is_not_a_tail() -> None:
    """D9: the next file was begun only after this block was durable."""
    journal = Written()
    journal.block(part(1, b"x" * 4000))
    journal.next_file()
    journal.block(part(2, b"later"))
    journal.files[0][LABEL_SIZE + 1024 : LABEL_SIZE + 1536] = bytes(512)
    first, second = journal.read()
    assert [each.ledger for each in first.damaged] == [1]
    assert [each.ledger for each in second.parts] == [2]


def test_a_payload_that_looks_like_a_later_block_proves_nothing() -> None:
    _, forging = encode_block(
        written(part(7, b"forged")), [], stream=STREAM ^ 1, sequence=50, previous_crc=0, file_offset=0
    )
    forged = b"".join(forging)
    journal = Written()
    journal.block(part(1, b"first"))
    journal.block(part(2, b"x" * 600 + forged + b"x" * 2000))
    _file, begin, _stop, _parts = journal.blocks[-1]
    hole = (begin // SECTOR + 4) * SECTOR
    journal.files[0][hole : hole + SECTOR] = bytes(SECTOR)
    assert journal.recovered() == [[part(1, b"first")]]


def test_files_that_their_writer_freed_meanwhile_are_passed_over() -> None:
    journal = three_blocks()
    journal.next_file()
    journal.block(part(5, b"five"))
    later: Sequence[bytes | None] = [None, bytes(journal.files[1])]
    reader = JournalReader(STREAM, 0, [Path("/0"), Path("/1")], lambda path: later[int(path.name)])
    assert [list(block.parts) for block in reader.blocks()] == [[part(5, b"five")]]
