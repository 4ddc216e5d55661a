"""How the stories let Spark read a topic, and what they look at in its rows."""

from collections.abc import Mapping, Sequence
from typing import Any


def source(address: str, topic: str, **further: str) -> dict[str, str]:
    """Return the options of a source that reads committed records from the beginning."""
    return {
        "kafka.bootstrap.servers": address,
        "kafka.isolation.level": "read_committed",
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        **further,
    }


def values(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return their values."""
    return [row["value"] for row in rows]
