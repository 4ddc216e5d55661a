"""Texts that fill one sector of a disk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.sector import SECTOR, DamagedSector, decode_sector, encode_sector

LONGEST = SECTOR - len(b"01234567 \n")


@given(st.binary(max_size=LONGEST).filter(lambda text: not text.endswith(b"\0")))
def test_a_text_comes_back(text: bytes) -> None:
    """E3: spaces, newlines and zeros in it do not matter, nor does what follows the sector."""
    sector = encode_sector(text)
    assert len(sector) == SECTOR
    assert decode_sector(sector + b"more") == text


@pytest.mark.parametrize("text", [b"", b"a b\n", b"x" * LONGEST])
def test_each_flipped_bit_is_damage(text: bytes) -> None:
    """E3: in the checksum, the separators, the text and the zeros alike."""
    sector = encode_sector(text)
    for bit in range(8 * SECTOR):
        damaged = bytearray(sector)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedSector):
            decode_sector(bytes(damaged))


@pytest.mark.parametrize("size", [0, 1, 8, 9, 12])
def test_a_cut_sector_is_damage(size: int) -> None:
    """E3: this includes an empty one, which is never written."""
    with pytest.raises(DamagedSector):
        decode_sector(encode_sector(b"text")[:size])


def test_a_text_that_does_not_fit_is_a_defect() -> None:
    """E3: otherwise it could be torn."""
    with pytest.raises(AssertionError):
        encode_sector(b"x" * (LONGEST + 1))
