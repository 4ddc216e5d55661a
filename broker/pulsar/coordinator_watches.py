"""Watches of one connection on the transaction coordinators: which broker a client should use for each.

A v5 client watches them from its start. It gets all coordinators with their addresses at once, and again whenever one
has another address. The addresses are advice. Any broker serves the commands of any coordinator, so a client that
learns of a change late is served as well (`broker.cluster.shards`).

v4 clients find their coordinators by lookups of a system topic. They are not served (`transactions.py`).
"""

from collections.abc import Iterator
from typing import Final

from broker.cluster.shards import Shards
from broker.errors import NotSupported
from broker.pulsar.connection import Connection
from broker.pulsar.faults import Fault
from broker.pulsar.requests import Inline, Request
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame, encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

WATCHES_MAX: Final = 64
"""Watches of one connection. A client needs one."""


class CoordinatorWatchHandler:
    """Serves the watches of one connection."""

    def __init__(self, connection: Connection, shards: Shards) -> None:
        self._outbox = connection.outbox
        self._service_url = connection.service_url
        self._shards = shards
        self._watches: dict[int, None] = {}
        self._is_closed = False

    @property
    def inline(self) -> dict[int, Inline]:
        """See `CommandHandler`."""
        return {pb.BaseCommand.WATCH_TC_ASSIGNMENTS_CLOSE: self._unwatch}

    @property
    def requests(self) -> dict[int, Request]:
        """See `CommandHandler`. Clients look for a refusal in an update's own error field."""
        return {pb.BaseCommand.WATCH_TC_ASSIGNMENTS: Request(self._watch, _refused)}

    def close(self) -> Iterator[None]:
        """See `CommandHandler`."""
        self._is_closed = True
        self._shards.unfollow(self._changed)
        return iter(())

    async def _watch(self, command: pb.BaseCommand) -> None:
        watch_id = command.watch_tc_assignments.watch_id
        if watch_id not in self._watches and len(self._watches) >= WATCHES_MAX:
            raise NotSupported(
                f"This connection already has {WATCHES_MAX} watches of transaction coordinators, its maximum. Close "
                f"one first."
            )
        if self._is_closed:
            return
        self._watches[watch_id] = None
        self._shards.follow(self._changed)
        self._put(watch_id)

    async def _unwatch(self, frame: Frame) -> None:
        self._watches.pop(frame.command.watch_tc_assignments_close.watch_id, None)
        if not self._watches:
            self._shards.unfollow(self._changed)

    def _changed(self) -> None:
        for watch_id in self._watches:
            self._put(watch_id)

    def _put(self, watch_id: int) -> None:
        # This broker may have several addresses. Use the one that this client connected to.
        elsewhere = self._shards.elsewhere()
        assignments = [
            pb.TcAssignment(tc_id=tc_id, broker_service_url=elsewhere.get(tc_id, self._service_url))
            for tc_id in range(self._shards.count)
        ]
        update = commands.watch_tc_assignments_update(watch_id, self._shards.count, assignments)
        self._outbox.put(encode_command(update))


def _refused(command: pb.BaseCommand, fault: Fault) -> pb.BaseCommand:
    return commands.watch_tc_assignments_failed(command.watch_tc_assignments.watch_id, fault.code, fault.message)
