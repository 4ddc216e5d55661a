"""Whether another broker is gone, so that its journal may be recovered (C12), or at least its claims are free.

A registration that is missing shows only that the session has ended. The broker may live, and return: the metadata
store was away for longer than the sessions, or the broker was cut off from it. Such a broker closes all its ledgers as
soon as its session ends, and then nobody has to fence its journal. So the others give it a grace before they do.

    registered in this folder                                  alive
    registered, and the record is damaged                      may be alive
    not registered, and its lock proves that it has ended      gone
    not registered for the grace, as this process saw it       gone
    not registered for a shorter time                          may be alive

The grace begins again under a new session of this process, because until then it was cut off itself. It also begins
again if nobody asked for a while, because the broker may have been back in between.

After a kill, the registration and the claims stay until the session ends. Nobody has to wait for that: a free lock
proves that the process has ended, so the session may be ended (`has_ended`). The id of the session is that of the
registration whose lock was tried. So a broker that has started again meanwhile keeps its new session and its claims.
"""

from math import inf
from typing import Final, NamedTuple

import structlog
import trio

from broker.cluster.membership import BROKERS, Membership, registration_in
from broker.keyed_locks import KeyedLocks
from broker.store_retry import RETRY_SECONDS
from storage.broker_home import BrokerHome
from storage.dead_or_alive import Liveness, probe
from storage.errors import WriterAlive
from storage.journal_recovery import Absent
from storage.metadata.store import ABSENT, Check, MetadataStore, Session
from storage.writer import Writer

UNASKED_SECONDS_MAX: Final = 2 * RETRY_SECONDS
"""Longer than the grace by this much: questions further apart are about different absences."""


PROBE_SECONDS: Final = 0.1
"""How long a lock that was held counts as held. Thousands of clients that look topics up at once try it once, held or
not."""

log = structlog.get_logger(__name__)


class _Tried(NamedTuple):
    """A broker whose lock was tried."""

    version: int
    """Of its registration."""
    has_ended: bool
    """Whether the lock was free. Then the session of that registration was ended."""
    until: float
    """When the lock is tried again, on Trio's clock. A death is final."""


class _Missing(NamedTuple):
    """One absence of a broker, on Trio's clock."""

    since: float
    asked: float
    """When it was last found missing."""


class Absences:
    """See the module's docstring."""

    def __init__(
        self, metadata: MetadataStore, membership: Membership, home: BrokerHome, *, grace_seconds: float
    ) -> None:
        self._metadata = metadata
        self._membership = membership
        self._home = home
        self._grace_seconds = grace_seconds
        self._session: Session | None = None
        self._missing: dict[str, _Missing] = {}
        """The brokers that were seen missing under this session."""
        self._tried: dict[str, _Tried] = {}
        self._probing: KeyedLocks[str] = KeyedLocks()

    async def require_gone(self, writer: Writer, lock: str | None) -> Absent:
        """Return if the writer's broker is gone. `lock` is the name of the lock that it held, if that is known.

        Raises:
            WriterAlive: it runs, or may still run.
        """
        session = self._membership.session
        if session is not self._session:
            self._session = session
            self._missing.clear()
        key = BROKERS + writer.broker
        record = await self._metadata.get(key)
        if record is not None:
            registered = registration_in(record)
            if registered is None or registered.folder == writer.folder:
                self._missing.pop(writer.broker, None)
                raise WriterAlive(writer)
        if await probe(self._home.files, self._home.data_dir, writer.broker, lock) is not Liveness.DEAD:
            now = trio.current_time()
            missing = self._missing.get(writer.broker)
            if missing is None or now - missing.asked > self._grace_seconds + UNASKED_SECONDS_MAX:
                missing = _Missing(now, now)
            self._missing[writer.broker] = missing = missing._replace(asked=now)
            gone_at = missing.since + self._grace_seconds
            if now < gone_at:
                raise WriterAlive(writer, gone_at=gone_at)
        return Absent(Check(key, ABSENT if record is None else record.version), session)

    async def has_ended(self, broker_id: str) -> bool:
        """Return whether the broker has no registration. If its process has ended, end its session first.

        So if this returns True, its claims are free. False proves nothing: a stopped process holds its lock, and the
        lock of another machine cannot be tried.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        key = BROKERS + broker_id
        record = (await self._metadata.fresh([key])).records[key]
        if record is None:
            return True
        # One after another, because two that try a lock at the same moment disturb each other.
        async with self._probing.hold(broker_id):
            tried = self._tried.get(broker_id)
            if tried is not None and tried.version == record.version and trio.current_time() < tried.until:
                return tried.has_ended
            registered = registration_in(record)
            lock = None if registered is None else registered.lock
            has_ended = await probe(self._home.files, self._home.data_dir, broker_id, lock) is Liveness.DEAD
            if has_ended and record.session is not None:
                log.info("ending the session of a broker whose process has ended", broker=broker_id)
                await self._metadata.end_session(record.session)
            until = inf if has_ended else trio.current_time() + PROBE_SECONDS
            self._tried[broker_id] = _Tried(record.version, has_ended, until)
            return has_ended
