"""One checked text in one sector: after a crash, all of it is there or none of it.

    sector = [8 hex digits of crc][space][text][newline][zeros]

A disk writes a sector whole or not at all, so a text in one sector can be rewritten in place.

Pure: bytes in, bytes out.
"""

from typing import Final

import google_crc32c

SECTOR: Final = 512
"""The smallest unit that a disk writes whole."""


class DamagedSector(ValueError):
    """The bytes are not what `encode_sector` made."""


def encode_sector(text: bytes) -> bytes:
    """A sector with this text. The text must fit, and must not end in a zero byte."""
    line = _line(text)
    assert len(line) <= SECTOR, f"{len(text)} bytes are too many for one sector"
    return line.ljust(SECTOR, b"\0")


def decode_sector(data: bytes) -> bytes:
    """The text in the sector that `data` begins with.

    Raises:
        DamagedSector: a byte of it differs from what was written.
    """
    line = data[:SECTOR].rstrip(b"\0")
    _crc, _space, text = line.removesuffix(b"\n").partition(b" ")
    if line != _line(text):
        raise DamagedSector("its checksum differs")
    return text


def _line(text: bytes) -> bytes:
    return b"%08x %s\n" % (google_crc32c.value(text), text)
