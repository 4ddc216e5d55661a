"""Requests that real clients of Kafka have sent, for fuzzing and attacks.

A line of the file has a client, the kind and the version of a request, and its bytes without those of its size. The
clients are confluent-kafka 2.16.1, aiokafka 0.14.0 and kafka-python 3.0.12. Each created, extended and deleted a topic,
wrote with and without a transaction, read in a group, and described and deleted the group. Of each kind and version,
the longest request stands here.
"""

from pathlib import Path
from typing import Final, NamedTuple

_FILE: Final = Path(__file__).parent.parent / "tidewire/wire/kafka/recorded_requests.txt"


class Recorded(NamedTuple):
    """One request."""

    client: str
    key: int
    version: int
    data: bytes


def _read(line: str) -> Recorded:
    client, key, version, data = line.split()
    return Recorded(client, int(key), int(version), bytes.fromhex(data))


REQUESTS: Final = tuple(map(_read, _FILE.read_text("ascii").splitlines()))
RECORDED: Final = tuple(request.data for request in REQUESTS)


def framed(data: bytes) -> bytes:
    """The request with its size in front."""
    return len(data).to_bytes(4) + data
