"""The backlogs of logs that this broker has unloaded: what the console saw, and what the last scrape counted.

Nobody publishes to an unloaded log and nobody acknowledges there, so its backlog only grows older. What is kept counts
until the log is loaded again, here or elsewhere, or deleted. Its records tell that at each scrape: another broker has
the claim, or the log's leader epoch has risen, or the log has no record. So nothing has to be told, and nothing runs
between scrapes. What a scrape counted is not kept if it changed behind that, because what it became is not known.

A restart forgets all of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from broker.backlogs import SUBSCRIPTION, Counted, Places
from broker.cluster.ownership import ClaimUnreadable, claim_key, owner_in
from broker.live_contract import LiveLog
from broker.live_log import live_log
from broker.names import TopicName
from broker.topic import Topic
from storage.cursor_record import cursor_key
from storage.errors import LedgerListCorrupt
from storage.ledger_record import leader_epochs
from storage.managed_ledger_record import record_key
from storage.metadata.store import ABSENT, MetadataStore

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class UnloadedLog:
    """A log that was unloaded here, and what its readers had left."""

    name: TopicName
    public_name: TopicName
    """The name by which users know it: without its segment or partition."""
    leader_epoch: int
    """That of this broker, when it had the log."""
    last: LiveLog
    """What was to be said of it when it was closed."""
    readers: Mapping[str, Counted]
    """By `SUBSCRIPTION` or `GROUP` with the reader's name. Each of them had a backlog."""
    checked_version: int = ABSENT
    """The version of the log's record that was found to be of this epoch."""


@dataclass(slots=True)
class UnloadedBacklogs:
    """See the module's docstring."""

    metadata: MetadataStore
    broker_id: str
    logs_max: Final[int]
    """So many logs are kept, and no further ones."""
    _logs: dict[TopicName, UnloadedLog] = field(default_factory=dict)

    def keep(self, topic: Topic, public_name: TopicName, places: Places) -> None:
        """Keep what the readers of a log have left, which this broker has unloaded."""
        readable = topic.readable.value
        readers = {
            reader: counted._replace(cursor=None)
            for reader, counted in places.counted.items()
            if counted.is_current(readable)
        }
        last = live_log(topic, topic.closed_with)
        if not readers and not any(one.backlog for one in last.subscriptions.values()):
            return
        if len(self._logs) >= self.logs_max:
            log.warning(
                "the metrics leave out the backlog of an unloaded topic; raise --metrics-series-max",
                topic=str(topic.name),
            )
            return
        self._logs[topic.name] = UnloadedLog(topic.name, public_name, topic.ledger.leader_epoch, last, readers)

    def forget(self, name: TopicName) -> None:
        """Forget a log, because it is loaded."""
        self._logs.pop(name, None)

    def subscriptions(self, unloaded: UnloadedLog) -> Mapping[str, Counted]:
        """The subscriptions with a backlog, by name. A deleted one has none: a log need not be loaded for that."""
        named = {
            reader.removeprefix(SUBSCRIPTION): counted
            for reader, counted in unloaded.readers.items()
            if reader.startswith(SUBSCRIPTION)
        }
        return {name: counted for name, counted in named.items() if self._exists(unloaded, name)}

    def seen(self, unloaded: UnloadedLog) -> LiveLog:
        """What is to be said of a log now: what was, without clients and deleted subscriptions."""
        last = unloaded.last
        subscriptions = {
            name: subscription._replace(consumers=())
            for name, subscription in last.subscriptions.items()
            if self._exists(unloaded, name)
        }
        return last._replace(producers=0, subscriptions=subscriptions)

    def _exists(self, unloaded: UnloadedLog, subscription: str) -> bool:
        return self.metadata.peek(cursor_key(str(unloaded.name), subscription)) is not None

    def __iter__(self) -> Iterator[UnloadedLog]:
        """Yield those whose backlog is still as it was, and forget the others."""
        for unloaded in tuple(self._logs.values()):
            if self._is_unchanged(unloaded):
                yield unloaded
            else:
                self.forget(unloaded.name)

    def _is_unchanged(self, unloaded: UnloadedLog) -> bool:
        # The image may be stale. It then shows this broker's own claim or an earlier epoch, and later the newer ones.
        claim = self.metadata.peek(claim_key(str(unloaded.name)))
        record = self.metadata.peek(record_key(str(unloaded.name)))
        if record is None:
            return False
        try:
            if claim is not None and owner_in(claim).broker_id != self.broker_id:
                return False
            if record.version != unloaded.checked_version:
                if leader_epochs(record.value).present > unloaded.leader_epoch:
                    return False
                unloaded.checked_version = record.version
        except (ClaimUnreadable, LedgerListCorrupt):
            # Whoever loads it reports it.
            return False
        return True
