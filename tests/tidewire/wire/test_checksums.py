import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.wire.pulsar.building import build_message, message_metadata
from tidewire.wire.pulsar.checksums import checksum_start, crc32c, verify_payload
from tidewire.wire.pulsar.errors import ChecksumMismatch, MalformedMessage, WireError

SOUND = build_message(message_metadata("p", 1, 2), b"value")
BROKER_METADATA = bytes.fromhex("0e02 00000003 080110")


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_crc32c_gives_the_values_of_its_standard(data: bytes, crc: int) -> None:
    """The last three are from RFC 3720, appendix B.4."""
    assert crc32c(data) == crc


def test_the_checksum_covers_all_that_follows_it() -> None:
    assert SOUND[:2] == b"\x0e\x01"
    assert int.from_bytes(SOUND[2:6], "big") == crc32c(SOUND[6:])
    verify_payload(SOUND)


@pytest.mark.parametrize("place", range(2, len(SOUND)))
def test_any_changed_byte_is_noticed(place: int) -> None:
    damaged = bytearray(SOUND)
    damaged[place] ^= 0x10
    with pytest.raises(ChecksumMismatch, match="crc32c"):
        verify_payload(bytes(damaged))


def test_a_payload_cut_short_is_noticed() -> None:
    with pytest.raises(ChecksumMismatch):
        verify_payload(SOUND[:-1])


def test_a_payload_without_checksum_has_nothing_to_check() -> None:
    verify_payload(SOUND[6:])
    verify_payload(b"")


def test_the_broker_s_own_metadata_stand_before_the_checksum_and_outside_it() -> None:
    assert checksum_start(BROKER_METADATA + SOUND) == len(BROKER_METADATA)
    verify_payload(BROKER_METADATA + SOUND)
    verify_payload(BROKER_METADATA + SOUND[6:])
    with pytest.raises(ChecksumMismatch):
        verify_payload(BROKER_METADATA + SOUND + b"x")


@pytest.mark.parametrize("data", ["0e01", "0e0100", "0e01000000", "0e02", "0e02000000", "0e02ffffffff0000"])
def test_a_payload_that_ends_too_early_is_malformed(data: str) -> None:
    with pytest.raises(MalformedMessage):
        verify_payload(bytes.fromhex(data))


@given(st.sampled_from([b"", b"\x0e\x01", b"\x0e\x02", b"\x0e\x02\x00\x00\x00\x02xx\x0e\x01"]), st.binary(max_size=40))
def test_no_payload_raises_anything_but_a_wire_error(start: bytes, rest: bytes) -> None:
    with contextlib.suppress(WireError):
        verify_payload(start + rest)
