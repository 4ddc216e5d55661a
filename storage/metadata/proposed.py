"""A writer's request as data, so that it can be decided here or sent to the process that decides.

Every store with an image decides the same three requests (`decide`). What each of them does to the image is in `Delta`.

Pure: no IO, no waiting.
"""

from typing import NamedTuple

from storage.metadata.batches import Point
from storage.metadata.delta import Delta
from storage.metadata.steps import Steps
from storage.metadata.store import Check, Committed, Op


class Commit(NamedTuple):
    """A change set that passed `measure`."""

    ops: tuple[Op, ...]
    size: int
    """An upper bound of the bytes that it adds to the log: what `measure` returned."""


class OpenSession(NamedTuple):
    """A new session. Its id is the revision of the answer."""

    timeout_ms: int
    owner: str = ""
    """The broker whose link it is for; "" for any other session."""
    nonce: int = 0
    """See `records.SessionStart`."""

    @property
    def size(self) -> int:
        """It adds one small record to the log, which counts as nothing."""
        return 0


class EndSessions(NamedTuple):
    """The end of sessions, and of their records. Sessions that have ended already are skipped."""

    sessions: tuple[int, ...]
    condition: Check | None = None
    """They end only if this holds, for example while a dead broker's registration is still the same."""

    @property
    def size(self) -> int:
        """It adds one small record for each session, which count as nothing."""
        return 0


Proposed = Commit | OpenSession | EndSessions
"""What a writer asks for."""


class NameSnapshot(NamedTuple):
    """The log shall name a snapshot. Only the process that decides asks for it, and it changes nothing of the state."""

    point: Point
    """The place whose state the snapshot holds."""
    epoch: int

    @property
    def size(self) -> int:
        """It adds one small record to the log, which counts as nothing."""
        return 0


def decide(proposed: Proposed | NameSnapshot, delta: Delta) -> Steps[Committed]:
    """Decide it, in steps.

    Raises:
        Conflict, SessionLost: it is refused, and leaves no trace.
    """
    if isinstance(proposed, Commit):
        return delta.commit_in_steps(proposed.ops)
    if isinstance(proposed, OpenSession):
        return _open(proposed, delta)
    if isinstance(proposed, NameSnapshot):
        return _name(proposed, delta)
    return _end(proposed, delta)


def _open(proposed: OpenSession, delta: Delta) -> Steps[Committed]:
    yield from ()
    return Committed(delta.open_session(proposed.timeout_ms, proposed.owner, proposed.nonce), ())


def _name(proposed: NameSnapshot, delta: Delta) -> Steps[Committed]:
    yield from ()
    delta.name_snapshot(proposed.point, proposed.epoch)
    return Committed(delta.revision, ())


def _end(proposed: EndSessions, delta: Delta) -> Steps[Committed]:
    if proposed.condition is not None:
        yield from delta.commit_in_steps((proposed.condition,))
    revision = yield from delta.end_sessions_in_steps(proposed.sessions)
    return Committed(revision, ())
