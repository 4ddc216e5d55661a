"""Which part of the hash space a key falls into.

A scalable topic divides 0..65535 among its segments. Every client must compute the same number for the same key.
Otherwise the messages of a key would spread over segments and lose their order. This is the function of Pulsar's Java
client.
"""

from typing import Final

import mmh3

HASH_SPACE_SIZE: Final = 0x1_0000
"""Hashes are 0 <= hash < this."""


def key_hash(key: str | bytes) -> int:
    """The key's hash: the low 16 bits of Murmur3 (32 bits, x86 variant, seed 0) of its UTF-8 bytes."""
    return mmh3.hash(key, 0, signed=False) & (HASH_SPACE_SIZE - 1)
