"""The requests of Kafka's protocol that this broker knows, and from which version on each is flexible.

A flexible version (KIP-482) has compact strings and arrays, and tagged fields behind each structure. A request's
version also decides the form of its header and of its response's header.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class ApiKey(IntEnum):
    """The number of a request. The names are Kafka's own."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    API_VERSIONS = 18


FLEXIBLE_FROM: Final[Mapping[ApiKey, int]] = MappingProxyType(
    {
        ApiKey.PRODUCE: 9,
        ApiKey.FETCH: 12,
        ApiKey.LIST_OFFSETS: 6,
        ApiKey.METADATA: 9,
        ApiKey.API_VERSIONS: 3,
    }
)


def is_flexible(api_key: ApiKey, version: int) -> bool:
    """Whether a version of a request has compact and tagged fields."""
    return version >= FLEXIBLE_FROM[api_key]
