"""Batches: the meaning of a cut, a flipped bit or a lost piece."""

import random

import pytest

from storage.metadata.batches import (
    BATCH_BYTES_MAX,
    BEGINNING,
    HEADER_BYTES,
    Batch,
    Body,
    Damage,
    Link,
    Point,
    encode_batches,
    link_at,
    pack,
    read_batches,
)
from storage.sector import SECTOR

GROUPS = [[b"first"], [b"2nd"], [b"third" * 3, b"4", b"fifth and longer"], [b"six", b"seven!"]]
"""What was written at once: each group was durable before the next was written."""


def history() -> tuple[bytes, list[int], list[int]]:
    """A log with the ends of its batches and the starts of its groups."""
    data = b""
    ends: list[int] = []
    begins: list[int] = []
    point = BEGINNING
    for group in GROUPS:
        begins.append(len(data))
        written, point = encode_batches(
            point, [Body(body, 1) for body in group], confirmed=point.sequence, offset=len(data)
        )
        data += written
        for body in group:
            ends.append((ends or [0])[-1] + HEADER_BYTES + len(body))
    return data, ends, begins


BODIES = [body for group in GROUPS for body in group]


def read(data: bytes, after: Point = BEGINNING) -> tuple[list[bytes], Damage | None]:
    bodies: list[bytes] = []
    for batch in read_batches(data, after):
        if isinstance(batch, Damage):
            return bodies, batch
        bodies.append(batch.body)
    return bodies, None


def test_what_was_written_is_read() -> None:
    """R9: this includes batches before preallocated, unused space."""
    data, _ends, _begins = history()
    assert read(data) == read(data + bytes(1000)) == (BODIES, None)
    assert read(b"") == read(bytes(1000)) == ([], None)


def test_cut_at_every_byte() -> None:
    """R9: a cut between two batches leaves the batches before it; any other cut is damage, never a torn tail.

    Nothing is written beyond the durable end of the file, so no interrupted write leaves a file that ends inside a
    batch.
    """
    data, ends, _begins = history()
    for size in range(len(data)):
        bodies, damage = read(data[:size])
        whole = [end for end in ends if end <= size]
        assert bodies == BODIES[: len(whole)]
        if size in (0, *ends):
            assert damage is None
        else:
            assert damage is not None
            assert not damage.is_torn_tail
            assert damage.offset == (whole or [0])[-1]
            assert f"ends at byte {size}" in damage.reason


def test_every_flipped_bit() -> None:
    """D9: one flipped bit is damage anywhere, even in batches with nothing behind them."""
    data, ends, _begins = history()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        bodies, damage = read(bytes(flipped) + bytes(50))
        hit = sum(end <= bit // 8 for end in ends)
        assert bodies == BODIES[:hit]
        assert damage is not None
        assert damage.offset == (0, *ends)[hit]
        assert not damage.is_torn_tail


def test_a_flipped_bit_in_prepared_space_harms_nobody() -> None:
    """D9: it is no damage to confirmed data, which is still read."""
    data, _ends, _begins = history()
    prepared = data + bytes(1000)
    for bit in range(len(data) * 8, len(prepared) * 8):
        flipped = bytearray(prepared)
        flipped[bit // 8] ^= 1 << bit % 8
        bodies, damage = read(bytes(flipped))
        assert bodies == BODIES
        assert damage is not None
        assert damage.is_torn_tail
        assert damage.offset == len(data)


def torn_history(zeros: bytes) -> tuple[bytes, int, list[int], list[bytes]]:
    """A log whose last group takes several sectors, with its start, its batches' ends, and all bodies.

    Some batches contain `zeros`, so a written sector may be empty.
    """
    confirmed = [b"c" * 700, b"d" * 150]
    group = [b"e" * 30, b"f" * 600 + zeros + b"g", b"h" * 900, zeros + b"i", b"j" * 20]
    data = b""
    point = BEGINNING
    ends: list[int] = []
    for bodies in (confirmed, group):
        begin = len(data)
        known = point.sequence
        for body in bodies:
            batch, point = encode_batches(point, [Body(body, 1)], confirmed=known, offset=len(data))
            data += batch
            ends.append(len(data))
    return data, begin, ends, confirmed + group


@pytest.mark.parametrize("zeros", [b"", bytes(1300)])
def test_a_torn_write_is_a_torn_tail(zeros: bytes) -> None:
    """R9, D9: with any sectors of the last write missing, whole batches and a tail to cut are left."""
    data, begin, ends, bodies = torn_history(zeros)
    first, last = begin // SECTOR, len(data) // SECTOR
    rng = random.Random(5)
    for number in range(400):
        missing = {sector for sector in range(first, last + 1) if rng.random() < 0.5}
        if number <= last - first:
            missing = {first + number}
        torn = bytearray(data + bytes(700))
        lost: list[int] = []
        for sector in missing:
            start, stop = max(begin, sector * SECTOR), min(len(data), (sector + 1) * SECTOR)
            if any(torn[start:stop]):
                lost.append(start)
            torn[start:stop] = bytes(stop - start)
        found, damage = read(bytes(torn))
        whole = sum(end <= min(lost, default=len(data)) for end in ends)
        # A sector of zeros is as good as written, and so is the batch that ends in it.
        assert found == bodies[: len(found)]
        assert len(found) == whole
        if any(torn[ends[whole - 1] :]):
            assert damage is not None
            assert damage.is_torn_tail, damage
            assert damage.offset == ends[whole - 1]
            # So is what an interrupted cutting leaves of it.
            torn[ends[whole - 1] // SECTOR * SECTOR + SECTOR : len(data)] = bytes(
                max(0, len(data) - (ends[whole - 1] // SECTOR * SECTOR + SECTOR))
            )
            _, damage = read(bytes(torn))
            assert damage is None or damage.is_torn_tail
        else:
            assert damage is None


@pytest.mark.parametrize("zeros", [b"", bytes(1300)])
def test_damage_to_a_large_batch_is_no_torn_write(zeros: bytes) -> None:
    """D9: this holds even if some of its sectors are empty because their content is."""
    data, _begin, _ends, bodies = torn_history(zeros)
    for byte in range(len(data)):
        flipped = bytearray(data)
        flipped[byte] ^= 1 << byte % 8
        found, damage = read(bytes(flipped) + bytes(700))
        assert found == bodies[: len(found)]
        assert damage is not None
        assert not damage.is_torn_tail


def test_a_part_of_a_file_is_read_at_its_place() -> None:
    """D9: the start of a sector does not depend on how much is read at once."""
    data, begin, ends, bodies = torn_history(b"")
    point = BEGINNING
    for batch in read_batches(data[: ends[1]], point):
        assert isinstance(batch, Batch)
        point = batch.point
    torn = bytearray(data)
    torn[(begin // SECTOR + 1) * SECTOR : (begin // SECTOR + 2) * SECTOR] = bytes(SECTOR)
    whole = list(read_batches(bytes(torn), BEGINNING))
    part = list(read_batches(bytes(torn)[ends[1] :], point, begin=ends[1]))
    assert part == whole[2:]
    assert isinstance(part[-1], Damage)
    assert part[-1].is_torn_tail
    assert len(whole) < len(bodies)


def test_a_lost_batch_is_corruption_once_later_ones_call_it_confirmed() -> None:
    """D9: zeros in place of a confirmed batch are damage, and the message says what proves it."""
    data, ends, begins = history()
    for number, end in enumerate(ends[:-2]):
        written = bytearray(data)
        start = (0, *ends)[number]
        written[start:end] = bytes(end - start)
        bodies, damage = read(bytes(written))
        assert bodies == BODIES[:number]
        assert damage is not None
        assert not damage.is_torn_tail
        proof = min(begin for begin in begins if begin >= end)
        assert f"at byte {proof}" in damage.reason


def test_a_batch_of_elsewhere_does_not_pass() -> None:
    """R9: chained checksum and number reject a batch that was moved, repeated or left over."""
    data, ends, _begins = history()
    first, second = data[: ends[0]], data[ends[0] : ends[1]]
    other, _ = encode_batches(Point(1, 12345), [Body(b"2nd", 1)], confirmed=1, offset=ends[0])
    assert read(first + first)[0] == BODIES[:1]
    assert read(first + other)[0] == BODIES[:1]
    assert read(second)[0] == []
    assert read(first + second)[0] == BODIES[:2]


def test_a_magic_number_inside_a_record_proves_nothing() -> None:
    """D9: only a header with a valid checksum counts."""
    body = b"TWM1" * 300
    data, _ = encode_batches(BEGINNING, [Body(body, 1)], confirmed=0, offset=0)
    bodies, damage = read(data[: 2 * SECTOR].ljust(3 * SECTOR, b"\0"))
    assert bodies == []
    assert damage is not None
    assert damage.is_torn_tail


def test_change_sets_share_batches_and_are_never_divided() -> None:
    """R8: a batch is closed at 8 KiB; a larger change set has its own batch."""
    small, large = b"s" * 3000, b"l" * 9000
    bodies = pack([[small], [small], [small], [large, large], [small], [b"a", b"b"]])
    assert [len(body.data) for body in bodies] == [6000, 3000, 18000, 3002]
    assert [body.records for body in bodies] == [2, 1, 2, 3]
    assert pack([]) == []
    assert all(len(body.data) <= BATCH_BYTES_MAX for body in bodies if body.data[:1] == b"s")


def test_a_header_says_what_its_batch_follows() -> None:
    """Tools that read one file alone need it."""
    _, before = encode_batches(BEGINNING, [Body(b"a", 1)], confirmed=0, offset=0)
    data, after = encode_batches(before, [Body(b"b" * 9000, 1), Body(b"c", 1)], confirmed=1, offset=0)
    first = link_at(data + bytes(100))
    assert first is not None
    assert first.before == before
    second = link_at(data, first.size)
    assert second is not None
    assert second == Link(first.after, after, len(data) - first.size)
    alone = link_at(encode_batches(BEGINNING, [Body(b"a", 1)], confirmed=0, offset=0)[0])
    assert alone is not None
    assert alone.before == BEGINNING
    for nothing in (b"", bytes(1000), data[1:], data[:10]):
        assert link_at(nothing) is None
