import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.wire.pulsar.hashing import HASH_SPACE_SIZE, key_hash


@pytest.mark.parametrize(
    ("key", "murmur3"),
    [
        ("", 0),
        ("test", 0xBA6BD213),
        ("Hello, world!", 0xC0363E43),
        ("The quick brown fox jumps over the lazy dog", 0x2E4FF723),
        ("hello", 0x248BFA47),
        ("hello, world", 0x149BBB7F),
    ],
)
def test_a_hash_is_the_low_half_of_murmur3_with_seed_0(key: str, murmur3: int) -> None:
    """The numbers are those published with the reference implementation and its ports."""
    assert key_hash(key) == murmur3 & 0xFFFF
    assert key_hash(key.encode()) == murmur3 & 0xFFFF


def murmur3_32(data: bytes) -> int:
    """Compute the hash plainly."""

    def rotated(value: int, by: int) -> int:
        return (value << by | value >> (32 - by)) & 0xFFFFFFFF

    hashed = 0
    tail = len(data) - len(data) % 4
    for place in range(0, tail, 4):
        block = int.from_bytes(data[place : place + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        hashed ^= rotated(block, 15) * 0x1B873593 & 0xFFFFFFFF
        hashed = (rotated(hashed, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    if len(data) > tail:
        block = int.from_bytes(data[tail:], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        hashed ^= rotated(block, 15) * 0x1B873593 & 0xFFFFFFFF
    hashed ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashed = (hashed ^ hashed >> shift) * factor & 0xFFFFFFFF
    return hashed


@given(st.text())
def test_any_key_hashes_as_the_algorithm_says(key: str) -> None:
    assert key_hash(key) == murmur3_32(key.encode()) & 0xFFFF
    assert 0 <= key_hash(key) < HASH_SPACE_SIZE
