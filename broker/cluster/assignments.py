"""Assignments: hints which broker should own a topic next.

    /assignments/<quoted name>    {to, why, from}

A broker that gives up a topic may assign it to another one before it releases its claim. Lookups then name that broker,
while it runs and takes topics (`broker.cluster.placement.choose`). A claim deletes the topic's assignment in the same
change set (`broker.cluster.ownership`), so no hint outlives the next owner. The record ends with the session of the
broker that wrote it.

An assignment is advice and no state. Nobody waits for it, and no claim needs it. If it is lost, the topic is placed
like any other.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final
from urllib.parse import quote, unquote

import orjson
import structlog
import trio

from storage.metadata.store import Change, Check, MetadataStore, Put, Record, Session, starting_with
from storage.signal import Signal

ASSIGNMENTS: Final = "/assignments/"

log = structlog.get_logger(__name__)


class Why(StrEnum):
    """Why a topic is assigned; for people who read the records."""

    MOVE = "move"
    """Somebody asked for it."""
    DRAIN = "drain"
    """The owner drains."""
    BALANCE = "balance"
    """Another broker came after the owner had taken the topic."""
    SEAL = "seal"
    """The topic's controller needs an owner that seals the segment."""
    LEFTOVER = "leftover"
    """There is work on a topic that nobody owns."""


def assignment_key(name: str) -> str:
    """Return the key of a topic's assignment."""
    return ASSIGNMENTS + quote(name, safe="")


class Assignments:
    """The assignments of all brokers, as one broker knows them, and its own new ones."""

    def __init__(self, metadata: MetadataStore, session: Session, *, broker_id: str) -> None:
        self._metadata = metadata
        self._session = session
        self._broker_id = broker_id
        self._known: dict[str, str] = {}
        """Broker ids by the names of topics."""
        self._mine: Mapping[str, int] = {}
        self.mine_changed = Signal()
        """Set when `mine` has changed. One task may wait for it."""

    @property
    def mine(self) -> Mapping[str, int]:
        """The names of the topics that are assigned to this broker, with the versions of the assignments.

        A change makes a new mapping.
        """
        return self._mine

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the assignments until cancelled. It reports as started once it knows all existing ones."""
        async with self._metadata.watch_range(*starting_with(ASSIGNMENTS)) as watch:
            self._hear(await watch.next())
            task_status.started()
            async for change in watch:
                self._hear(change)

    def broker_for(self, name: str) -> str | None:
        """Return the id of the broker that `name` is assigned to, if any. That broker may have ended."""
        return self._known.get(name)

    async def assign(self, name: str, to: str, why: Why, *, condition: Check) -> None:
        """Assign a topic to the broker `to`; durable on return. An earlier assignment of the topic is replaced.

        Args:
            name: the topic or segment.
            to: the id of a broker.
            why: for people.
            condition: the caller's claim of the topic; or that nobody has claimed it.

        Raises:
            Conflict: the condition does not hold, so the topic has another owner.
            SessionLost: this broker's session has ended.
            StoreUnavailable: unknown whether the topic is assigned.
        """
        value = orjson.dumps({"to": to, "why": why, "from": self._broker_id})
        await self._metadata.commit([condition, Put(assignment_key(name), value, session=self._session)])

    def _hear(self, change: Change) -> None:
        mine = dict(self._mine)
        for key in change.deleted:
            self._known.pop(_assigned_name(key), None)
            mine.pop(_assigned_name(key), None)
        for record in change.records:
            to, name = _assigned_to(record), _assigned_name(record.key)
            mine.pop(name, None)
            if to is None:
                self._known.pop(name, None)
            else:
                self._known[name] = to
            if to == self._broker_id:
                mine[name] = record.version
        if mine != self._mine:
            self._mine = mine
            self.mine_changed.set()


def _assigned_name(key: str) -> str:
    return unquote(key.removeprefix(ASSIGNMENTS))


def _assigned_to(record: Record) -> str | None:
    try:
        to = orjson.loads(record.value)["to"]
    except (KeyError, TypeError, ValueError):
        to = None
    if isinstance(to, str):
        return to
    log.error("an assignment is damaged and is ignored", key=record.key)
    return None
