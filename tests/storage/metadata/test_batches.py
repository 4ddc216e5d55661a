"""Batches: what a cut, a flipped bit or a lost piece means."""

import pytest

from storage.metadata.batches import (
    BATCH_BYTES_MAX,
    BEGINNING,
    HEADER_BYTES,
    Body,
    Damage,
    Point,
    encode_batches,
    pack,
    read_batches,
)

GROUPS = [[b"first"], [b"2nd"], [b"third" * 3, b"4", b"fifth and longer"], [b"six", b"seven!"]]
"""What was written at once: each group was durable before the next was written."""


def history() -> tuple[bytes, list[int], list[int]]:
    """A log, where each of its batches ends, and where each of its groups begins."""
    data = b""
    ends: list[int] = []
    begins: list[int] = []
    point = BEGINNING
    for group in GROUPS:
        begins.append(len(data))
        written, point = encode_batches(point, [Body(body, 1) for body in group], confirmed=point.sequence)
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
    """R9: every batch, also before space that was prepared and not used."""
    data, _ends, _begins = history()
    assert read(data) == read(data + bytes(1000)) == (BODIES, None)
    assert read(b"") == read(bytes(1000)) == ([], None)


@pytest.mark.parametrize("padding", [0, 100])
def test_cut_at_every_byte(padding: int) -> None:
    """R9: a batch is wholly present or wholly absent, and a cut is a torn tail, never corruption."""
    data, ends, _begins = history()
    for size in range(len(data)):
        bodies, damage = read(data[:size] + bytes(padding))
        whole = [end for end in ends if end <= size]
        # Batches that end in zero bytes are as good as whole if the padding restores them; none here does.
        assert bodies == BODIES[: len(whole)]
        if damage is not None:
            assert damage.is_torn_tail
            assert damage.offset == (whole or [0])[-1]
        else:
            assert size in (0, *ends)


def test_every_flipped_bit() -> None:
    """D9: in the last group a flipped bit looks like a torn write; before it, it is damage to what was confirmed."""
    data, ends, begins = history()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        bodies, damage = read(bytes(flipped) + bytes(50))
        hit = sum(end <= bit // 8 for end in ends)
        assert bodies == BODIES[:hit]
        assert damage is not None
        assert damage.offset == (0, *ends)[hit]
        assert damage.is_torn_tail == (bit // 8 >= begins[-1])


@pytest.mark.parametrize("lost", [[2], [3], [4], [2, 3], [2, 4], [3, 4], [2, 3, 4]])
def test_batches_written_at_once_reach_the_disk_in_any_order(lost: list[int]) -> None:
    """D9: a hole in the last group is a torn tail even though whole batches stand behind it."""
    data, ends, _begins = history()
    written = bytearray(data[: ends[4]])
    for number in lost:
        written[ends[number - 1] : ends[number]] = bytes(ends[number] - ends[number - 1])
    bodies, damage = read(bytes(written) + bytes(50))
    assert bodies == BODIES[: lost[0]]
    if set(range(lost[0], 5)) <= set(lost):
        assert damage is None
    else:
        assert damage is not None
        assert damage.is_torn_tail
        assert damage.offset == ends[lost[0] - 1]


def test_a_lost_batch_is_corruption_once_later_ones_call_it_confirmed() -> None:
    """D9: zeros where a confirmed batch stood are damage, and the message says what proves it."""
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
    """R9: the chained checksum and the number refuse a batch that was moved, repeated or left over."""
    data, ends, _begins = history()
    first, second = data[: ends[0]], data[ends[0] : ends[1]]
    other, _ = encode_batches(Point(1, 12345), [Body(b"2nd", 1)], confirmed=1)
    assert read(first + first)[0] == BODIES[:1]
    assert read(first + other)[0] == BODIES[:1]
    assert read(second)[0] == []
    assert read(first + second)[0] == BODIES[:2]


def test_a_magic_number_inside_a_record_proves_nothing() -> None:
    """D9: only a header whose own checksum holds is one."""
    body = b"TWM1" * 30
    data, _ = encode_batches(BEGINNING, [Body(body, 1)], confirmed=0)
    bodies, damage = read(data[:-1])
    assert bodies == []
    assert damage is not None
    assert damage.is_torn_tail


def test_change_sets_share_batches_and_are_never_divided() -> None:
    """R8: a batch is closed at 8 KiB; a larger change set stands alone."""
    small, large = b"s" * 3000, b"l" * 9000
    bodies = pack([[small], [small], [small], [large, large], [small], [b"a", b"b"]])
    assert [len(body.data) for body in bodies] == [6000, 3000, 18000, 3002]
    assert [body.records for body in bodies] == [2, 1, 2, 3]
    assert pack([]) == []
    assert all(len(body.data) <= BATCH_BYTES_MAX for body in bodies if body.data[:1] == b"s")
