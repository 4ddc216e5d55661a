"""What every running broker says of itself (`local`), together: this one's feed, and a stream from each other one.

A stream ends with its broker's registration. If it is lost before that, it is asked for again after RETRY_SECONDS.
Until then, the view says that the broker is silent.
"""

from typing import Final

import orjson
import structlog
import trio

from broker.administration_contract import ClusterService
from broker.cluster.membership import BROKERS
from broker.console.feed import Feed, follow
from broker.http.lines import running
from broker.peers import PeerSilent
from storage.metadata.store import Change, MetadataStore
from storage.signal import Signal

RETRY_SECONDS: Final = 2.0
"""The pause before a lost stream is asked for again. No event tells that a registered broker answers again."""

log = structlog.get_logger(__name__)


class Everywhere:
    """See the module's docstring."""

    def __init__(self, store: MetadataStore, cluster: ClusterService, own: Feed, target: str, changed: Signal) -> None:
        """Set up.

        Args:
            store: has the registrations.
            cluster: asks the other brokers.
            own: what this broker says of itself.
            target: where the other brokers say it, as a path with its parameters.
            changed: set when a broker said something new.
        """
        self._store = store
        self._cluster = cluster
        self._own = own
        self._target = target
        self._changed = changed
        self._others: dict[str, dict[str, object]] = {}
        self._silent: dict[str, str] = {}
        self._scopes: dict[str, trio.CancelScope] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the brokers until cancelled."""
        async with running(self._own), trio.open_nursery() as nursery:

            def hear(change: Change) -> None:
                for key in change.deleted:
                    scope = self._scopes.pop(key.removeprefix(BROKERS), None)
                    if scope is not None:
                        scope.cancel()
                for record in change.records:
                    broker = record.key.removeprefix(BROKERS)
                    if broker != self._cluster.broker_id and broker not in self._scopes:
                        self._scopes[broker] = trio.CancelScope()
                        nursery.start_soon(self._follow, broker, self._scopes[broker])

            async def relay() -> None:
                while True:
                    await self._own.changed.wait()
                    self._changed.set()

            nursery.start_soon(relay)
            await follow(self._store, [(BROKERS, hear)], self._changed, task_status=task_status)

    @property
    def by_broker(self) -> dict[str, dict[str, object]]:
        """What each broker said last. One that is silent is not among them."""
        return {self._cluster.broker_id: dict(self._own.parts()), **self._others}

    @property
    def silent(self) -> dict[str, str]:
        """The brokers that run and do not answer, with a reason for each."""
        return dict(self._silent)

    async def _follow(self, broker: str, scope: trio.CancelScope) -> None:
        try:
            with scope:
                while True:
                    await self._follow_once(broker)
                    self._others.pop(broker, None)
                    self._changed.set()
                    await trio.sleep(RETRY_SECONDS)
        finally:
            self._others.pop(broker, None)
            self._silent.pop(broker, None)
            self._changed.set()

    async def _follow_once(self, broker: str) -> None:
        try:
            async with self._cluster.follow(broker, self._target) as next_line:
                while (line := await next_line()) is not None:
                    self._others.setdefault(broker, {}).update(orjson.loads(line))
                    self._silent.pop(broker, None)
                    self._changed.set()
            self._silent[broker] = f"Broker {broker} has ended its stream."
        except PeerSilent as silent:
            self._silent[broker] = str(silent)
        except orjson.JSONDecodeError as damaged:
            log.warning("what a broker says of itself cannot be read", broker=broker, reason=str(damaged))
            self._silent[broker] = f"Broker {broker} sends what this broker cannot read. Its release may differ."
