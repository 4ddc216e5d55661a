"""The metadata of a running broker, read through its HTTP listener."""

import json
from collections.abc import Iterator
from typing import Final, NamedTuple

from tidewire.cli.broker_http import BrokerHttp
from tidewire.cli.endings import CommandFailed

_PREFIX: Final = "/admin/v2/metadata"


class Snapshot(NamedTuple):
    """What a snapshot covers, and its size."""

    sequence: int
    revision: int
    size_bytes: int


class BrokerMetadata:
    """The records of a running broker. Every method raises `NotAnswered` and `NotAccepted` with a message."""

    def __init__(self, address: str) -> None:
        """Take the broker's address, such as `127.0.0.1:8080` or `http://127.0.0.1:8080`; nothing is sent yet.

        Raises:
            UsageError: `address` is not such an address.
        """
        self._http = BrokerHttp(address)
        self.url = self._http.url
        """The broker's name in messages."""

    def dump(self, prefix: str, limit: int | None) -> Iterator[bytes]:
        """Yield the records in key order, a line each."""
        return self._http.lines(_PREFIX + "/records", {"prefix": prefix, "limit": limit})

    def get(self, key: str) -> bytes:
        """Return one record as a line."""
        (line,) = self._http.lines(_PREFIX + "/record", {"key": key})
        return line

    def query(self, index: str, start: str, end: str | None, limit: int | None) -> Iterator[bytes]:
        """Yield the index's entries with keys in [start, end), a line each, with the records they point at."""
        return self._http.lines(_PREFIX + "/index", {"name": index, "from": start, "to": end, "limit": limit})

    def watch(self, prefix: str) -> Iterator[bytes]:
        """Yield the records, then every change as it happens, a line each. It ends only by raising."""
        yield from self._http.lines(_PREFIX + "/watch", {"prefix": prefix}, pushed=True)
        raise CommandFailed(f"The broker at {self.url} ended the watch. Start it again to get later changes.")

    def snapshot(self) -> Snapshot:
        """Have the broker write a snapshot now; it is durable on return."""
        (line,) = self._http.lines(_PREFIX + "/snapshot", {}, method="POST")
        taken = json.loads(line)
        return Snapshot(taken["sequence"], taken["revision"], taken["size_bytes"])
