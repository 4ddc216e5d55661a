import random

import pytest

from storage.entry import UNCOPIED_BYTES_MIN, Entry, encode_batch, encode_entry
from storage.journal_block import (
    HEADER_SIZE,
    DamagedBlock,
    Part,
    WrittenPart,
    decode_directory,
    decode_header,
    empty_sectors,
    encode_block,
    is_body_good,
    is_unwritten,
    parts_by_body,
    parts_by_directory,
)
from storage.position import Position
from storage.sector import SECTOR
from tests.support.ledgers import part, written


def block_of(parts: list[Part], *, deleted: list[int] | None = None, file_offset: int = 0) -> bytes:
    _, pieces = encode_block(
        written(*parts), deleted or [], stream=99, sequence=4, previous_crc=7, file_offset=file_offset
    )
    return b"".join(pieces)


def test_a_block_gives_back_its_parts_by_directory_and_by_body() -> None:
    parts = [part(1, b"a"), part(2, b"b" * 3000, offset=512), part(1, b"", offset=99)]
    block = b"before" + block_of(parts, deleted=[8, 9], file_offset=6)
    header = decode_header(block, 6)
    directory = decode_directory(block, 6 + HEADER_SIZE)
    assert (header.stream, header.sequence, header.previous_crc, header.size) == (99, 4, 7, len(block) - 6)
    assert is_body_good(header, block, 6)
    assert [found for found, is_good in parts_by_directory(directory, block, 6) if is_good] == parts
    assert list(parts_by_body(header, block, 6)) == parts
    assert directory.deleted == (8, 9)
    assert HEADER_SIZE + directory.size + directory.body_size == header.size


def test_a_block_may_carry_deletions_alone() -> None:
    block = block_of([], deleted=[3])
    assert decode_directory(block, HEADER_SIZE).deleted == (3,)
    assert is_body_good(decode_header(block, 0), block, 0)


@pytest.mark.parametrize("region", ["header", "directory", "body"])
def test_a_flipped_bit_shows_in_the_region_it_is_in(region: str) -> None:
    block = block_of([part(1, b"a" * 40)])
    header = decode_header(block, 0)
    begin, stop = {
        "header": (0, HEADER_SIZE),
        "directory": (HEADER_SIZE, HEADER_SIZE + header.directory_size),
        "body": (HEADER_SIZE + header.directory_size, header.size),
    }[region]
    for bit in range(begin * 8, stop * 8):
        damaged = bytearray(block)
        damaged[bit // 8] ^= 1 << bit % 8
        found = set()
        try:
            is_good = is_body_good(decode_header(bytes(damaged), 0), bytes(damaged), 0)
            found |= set() if is_good else {"body"}
        except DamagedBlock:
            found.add("header")
        try:
            decode_directory(bytes(damaged), HEADER_SIZE)
        except DamagedBlock:
            found.add("directory")
        assert found == {region}


@pytest.mark.parametrize("seed", range(60))
def test_d9_the_directory_lists_exactly_the_sectors_that_are_rightly_empty(seed: int) -> None:
    """D9: an unlisted empty sector was not written, wherever the block is in its file."""
    rng = random.Random(seed)
    pieces = [
        bytes(rng.choice((0, 1, 511, 512, 513, 1024, 5000))) + rng.randbytes(rng.randrange(700)) for _ in range(6)
    ]
    parts = [part(1, b"".join(pieces[:3])), part(2, b"".join(pieces[3:]))]
    file_offset = rng.randrange(3 * SECTOR)
    block = block_of(parts, file_offset=file_offset)
    directory = decode_directory(block, HEADER_SIZE)
    assert directory.empty_sectors == frozenset(empty_sectors(block, file_offset))
    assert [found for found, _good in parts_by_directory(directory, block, 0)] == parts


@pytest.mark.parametrize("first", [bytes(3000), b"x" * UNCOPIED_BYTES_MIN + bytes(510), bytes(UNCOPIED_BYTES_MIN)])
@pytest.mark.parametrize("second", [b"", bytes(300), bytes(100) + b"y" * UNCOPIED_BYTES_MIN])
def test_d9_empty_sectors_are_listed_where_large_payloads_are_not_copied(first: bytes, second: bytes) -> None:
    """D9: zeros at a payload's end may fill a sector together with later zeros."""
    entries = [
        encode_entry(Entry(Position(1, number), payload, 0, 1, 0)) for number, payload in enumerate((first, second))
    ]
    _, pieces = encode_batch(1, 0, entries, confirmed_before=-1, previous_crc=0)
    parts = [WrittenPart(1, 0, pieces), WrittenPart(2, 0, pieces)]
    for file_offset in range(SECTOR):
        _, block = encode_block(parts, [], stream=99, sequence=4, previous_crc=7, file_offset=file_offset)
        joined = b"".join(block)
        assert decode_directory(joined, HEADER_SIZE).empty_sectors == frozenset(empty_sectors(joined, file_offset))
    assert is_body_good(decode_header(joined, 0), joined, 0)
    assert [each.batch for each in parts_by_body(decode_header(joined, 0), joined, 0)] == [b"".join(pieces)] * 2


def test_a_large_payload_is_not_copied() -> None:
    """A block passes the sent bytes on, and copies the small pieces around them together."""
    payloads = [b"x" * UNCOPIED_BYTES_MIN, b"small", b"also small", b"y" * UNCOPIED_BYTES_MIN]
    entries = [
        encode_entry(Entry(Position(1, number), payload, number, 1, 1_000)) for number, payload in enumerate(payloads)
    ]
    _, pieces = encode_batch(1, 0, entries, confirmed_before=-1, previous_crc=0)
    _, block = encode_block([WrittenPart(1, 0, pieces)], [], stream=9, sequence=4, previous_crc=7, file_offset=0)
    assert [piece for piece in block if len(piece) >= UNCOPIED_BYTES_MIN] == [payloads[0], payloads[3]]
    assert block[2] is payloads[0]
    assert block[4] is payloads[3]
    assert len(block) == 6


def test_an_unwritten_place_is_told_from_a_damaged_header() -> None:
    block = bytearray(block_of([part(1, b"a")]))
    assert is_unwritten(bytes(4096), 100)
    assert is_unwritten(b"", 0)
    assert not is_unwritten(bytes(block), 0)
    stray = bytearray(4096)
    stray[103] = 0x20
    assert is_unwritten(bytes(stray), 100)
    block[0] ^= 0x40
    assert not is_unwritten(bytes(block), 0)


@pytest.mark.parametrize("seed", range(60))
def test_a_sector_is_empty_if_every_byte_of_it_is_zero(seed: int) -> None:
    """D9, E7: whole sectors are compared, also at the block's edges."""
    rng = random.Random(seed)
    for size in (1, 511, 512, 513, 1024, rng.randrange(1, 4000)):
        block = bytearray(size)
        for _ in range(rng.choice((0, 0, 1, 3))):
            block[rng.randrange(size)] = 1
        file_offset = rng.choice((0, 1, 511, 512, 700))
        begins_in = file_offset // SECTOR
        expected = {(file_offset + place) // SECTOR - begins_in for place in range(size)}
        expected -= {(file_offset + place) // SECTOR - begins_in for place in range(size) if block[place]}
        assert empty_sectors(bytes(block), file_offset) == sorted(expected)
