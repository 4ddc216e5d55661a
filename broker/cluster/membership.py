"""Which brokers run: each broker's registration is an ephemeral record under its id (E4).

    /brokers/<broker id>    {folder, lock, service_url, http_url, release}, and internal_url if others share its folder,
                            and kafka if it serves Kafka's clients

A broker registers before it touches its journal. While the record exists, no other process can register this id. So two
brokers with one id never run on one metadata root, whatever their folders are.

After a `kill -9`, the dead process's record exists until its session ends. The next process with that id takes it over
at once if it holds the same lock. The record names the locked file (`Lock.name`). The operating system grants the lock
only when its previous holder has ended; a stopped process still holds it. In a copy of the folder the lock is another
file with another name. There, the start waits for the session's end.

A missing record, or one that could be taken over, shows that a broker is gone. It does not show that the broker stopped
writing. Only the fence ensures that (`storage.fence`).
"""

from math import inf
from typing import Final, NamedTuple

import orjson
import structlog
import trio

from broker.addresses import KafkaNode
from broker.errors import StartError
from storage.metadata.store import ABSENT, Check, Conflict, MetadataStore, Record, Session

BROKERS: Final = "/brokers/"
WAITS_PER_TIMEOUT: Final = 1.5
"""How long a start waits for the end of an earlier process's session, in session timeouts."""

log = structlog.get_logger(__name__)


class BrokerRuns(StartError):
    """Another process with this broker's id runs on the same metadata. The message is for the operator."""


class Registration(NamedTuple):
    """What tells the process that wrote a registration from others."""

    folder: str
    """Identity of its data folder."""
    lock: str
    """The name of the lock that it holds."""
    service_url: str


def registration_in(record: Record) -> Registration | None:
    """Return what a registration says; None if it is damaged. Then its process may live, in any folder."""
    try:
        fields = orjson.loads(record.value)
        return Registration(str(fields["folder"]), str(fields["lock"]), str(fields["service_url"]))
    except (KeyError, TypeError, ValueError) as damaged:
        log.error("the registration of a broker is damaged", key=record.key, reason=repr(damaged))
        return None


class Membership:
    """This broker's registration."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        broker_id: str,
        folder_id: str,
        lock_name: str,
        service_url: str,
        http_url: str,
        internal_url: str | None = None,
        kafka: KafkaNode | None = None,
        release: str,
    ) -> None:
        """Set up.

        Args:
            metadata: the store of the registrations.
            broker_id: the id of this broker.
            folder_id: the identity of its data folder.
            lock_name: the name of the lock that this process holds (`BrokerHome.lock_name`).
            service_url: where clients and other brokers send clients of Pulsar's protocol.
            http_url: where it serves HTTP.
            internal_url: where the other brokers on its data folder reach its metadata store; None if it is alone.
            kafka: what Kafka's clients know of it; None if it does not serve them.
            release: the version of Tidewire that it runs.
        """
        self._metadata = metadata
        self._broker_id = broker_id
        self._lock_name = lock_name
        self._registered: tuple[Session, Check] | None = None
        self._value = orjson.dumps(
            {
                "folder": folder_id,
                "lock": lock_name,
                "service_url": service_url,
                "http_url": http_url,
                "release": release,
                **({} if internal_url is None else {"internal_url": internal_url}),
                **({} if kafka is None else {"kafka": {"node": kafka.id, **kafka.address._asdict()}}),
            }
        )

    async def register(self, session: Session, *, timeout_seconds: float) -> Check:
        """Register under this session; durable on return. Return a condition that holds while registered.

        Call it again with a new session when the last one has ended; with the same session it does nothing. If an
        earlier process's record exists, this waits for the end of its session, up to WAITS_PER_TIMEOUT times
        `timeout_seconds`.

        Raises:
            BrokerRuns: that record still exists, so its process is alive.
            SessionLost: this session has ended meanwhile.
            StoreUnavailable: the store did not confirm the registration.
        """
        if self._registered is not None and self._registered[0] is session:
            return self._registered[1]
        key = BROKERS + self._broker_id
        held: Record | None = None
        deadline = trio.current_time() + WAITS_PER_TIMEOUT * timeout_seconds
        async with self._metadata.watch_key(key) as watch:
            while True:
                known = held
                # The deadline is for the other process. The store has its own time limits for its answers.
                with trio.CancelScope(deadline=inf if known is None else deadline) as waiting:
                    held = await watch.next()
                if known is not None and waiting.cancelled_caught:
                    raise self._runs(known)
                if held is not None and not self._is_over(held):
                    if known is None:
                        log.info(
                            "waiting for the end of an earlier session of this broker id",
                            broker=self._broker_id,
                            seconds_max=WAITS_PER_TIMEOUT * timeout_seconds,
                        )
                    continue
                expected = ABSENT if held is None else held.version
                try:
                    check = Check(key, await self._put(key, expected, session))
                except Conflict:
                    continue  # Another process has registered; the watch shows which.
                self._registered = session, check
                return check

    def _runs(self, held: Record) -> BrokerRuns:
        other = registration_in(held)
        where = "" if other is None else f" at {other.service_url}, on the data folder with the identity {other.folder}"
        return BrokerRuns(
            f"A broker with the id {self._broker_id} already runs{where}. Stop that broker, or start this one with "
            "another --broker-id."
        )

    @property
    def session(self) -> Session | None:
        """The session under which this broker registered last, or None."""
        return None if self._registered is None else self._registered[0]

    async def _put(self, key: str, expected: int, session: Session) -> int:
        return await self._metadata.put(key, self._value, expected=expected, session=session)

    def _is_over(self, held: Record) -> bool:
        """Return whether the process that wrote this record has ended, or is this process."""
        other = registration_in(held)
        return other is not None and other.lock == self._lock_name
