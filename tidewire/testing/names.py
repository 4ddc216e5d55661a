"""Names that no other test has, and that Kafka's and Pulsar's clients accept. Pure.

Only letters, digits and `-` are used. Kafka's tools treat `.` and `_` as the same character. A name never ends like a
partition's, `-partition-3`: its number has a letter before it.
"""

import re
from typing import Final

WORDS_LENGTH_MAX: Final = 80
"""Kafka allows 249 characters, and a test may add its own."""

_OTHERS: Final = re.compile(r"[^A-Za-z0-9]+")


def unique_name(test: str, number: int) -> str:
    """Return a name for the test `test`, which is its own if `number` is."""
    words = _OTHERS.sub("-", test)[:WORDS_LENGTH_MAX].strip("-")
    return f"{words or 'test'}-t{number}"
