"""Partitions and offsets, as the scenarios name them."""

from typing import NamedTuple


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int = 0


class Committed(NamedTuple):
    """A group's offset in a partition."""

    offset: int
    metadata: str = ""
