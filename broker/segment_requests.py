"""Requests about single segments and regular topics, to the brokers that own them.

The paths are those of `broker.http.segments`. A regular topic that is being migrated becomes a segment, so the request
for that is here too.
"""

from collections.abc import Collection
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote, quote_plus, urlencode

from broker.administration_contract import MigrationAsked, SegmentUsers
from broker.log_statistics import ConnectedConsumer, LogStatistics, SegmentSubscription
from broker.names import Domain, TopicName
from broker.peers import Peers

INDEXES_AT_ONCE: Final = 200
"""Indexes that one request asks about. Its head stays below 8 KiB."""


class LogCall(NamedTuple):
    """A call about one log, as administrators make it."""

    method: str
    below: str
    """The path below that of the log, and the parameters."""
    content: object = None
    """The body, as JSON."""

    @classmethod
    def of_subscription(cls, method: str, subscription: str, below: str = "", content: object = None) -> Self:
        """Return a call about a subscription of a regular topic; `below` stands below its path."""
        # Pulsar's tools encode the name twice there.
        return cls(method, f"/subscription/{quote(quote_plus(subscription), safe='')}{below}", content)


class SegmentRequests:
    """Every `segment` is a `segment://` name. Every method raises `PeerSilent` and `PeerRefused`."""

    def __init__(self, peers: Peers) -> None:
        """Set up; `peers` are the other brokers."""
        self._peers = peers

    async def statistics(self, owner: str, log: TopicName, indexes: Collection[int]) -> LogStatistics:
        """Return the statistics of a segment, or of a `persistent://` topic, and what is left from these indexes."""
        path = _path(log) + ("/log" if log.domain is Domain.PERSISTENT else "/stats")
        ordered = sorted(indexes)
        left_from: dict[int, int] = {}
        for start in range(0, max(1, len(ordered)), INDEXES_AT_ONCE):
            asked = urlencode([("index", index) for index in ordered[start : start + INDEXES_AT_ONCE]])
            answer = await self._peers.request(owner, "GET", f"{path}?{asked}" if asked else path)
            # A broker of an earlier release does not count them.
            left_from |= {int(index): int(left) for index, left in answer.get("leftFrom", {}).items()}
        subscriptions = {
            name: SegmentSubscription(
                int(counted["msgBacklog"]),
                frozenset(map(str, counted["consumers"])),
                # A broker of an earlier release says less.
                str(counted.get("type", "")),
                int(counted.get("unackedMessages", 0)),
                str(counted.get("markDeletePosition", "")),
                int(counted.get("backlogSize", 0)),
                int(counted.get("earliestMsgPublishTimeInBacklog", 0)),
                tuple(_connected(one) for one in counted.get("connected", ())),
            )
            for name, counted in answer["subscriptions"].items()
        }
        return LogStatistics(
            subscriptions,
            int(answer.get("firstIndex", 0)),
            int(answer.get("endIndex", 0)),
            frozenset(map(str, answer.get("producers", ()))),
            int(answer.get("msgInCounter", 0)),
            int(answer.get("bytesInCounter", 0)),
            int(answer.get("msgOutCounter", 0)),
            int(answer.get("bytesOutCounter", 0)),
            int(answer.get("storageSize", 0)),
            int(answer.get("clients", 0)),
            left_from,
        )

    async def call(self, owner: str, log: TopicName, call: LogCall) -> Any:  # noqa: ANN401 - JSON
        """Let the owner do what an administrator asked of the log. Return what it answers, if anything."""
        return await self._peers.request(owner, call.method, _path(log) + call.below, call.content)

    async def is_untouched(self, owner: str, segment: TopicName) -> bool:
        """Return `Topic.is_untouched` of the segment."""
        return bool(await self._peers.request(owner, "GET", _path(segment) + "/untouched"))

    async def users(self, owner: str, segment: TopicName) -> SegmentUsers:
        """Return who is connected to the segment. A broker that does not serve it any more refuses."""
        answer = await self._peers.request(owner, "GET", _path(segment) + "/users")
        return SegmentUsers(int(answer["clients"]), frozenset(map(str, answer["subscriptions"])))

    async def move(self, owner: str, segment: TopicName, subscription: str, timestamp_ms: int | None) -> None:
        """Move a subscription on the segment: see `TopicService.seek`, or without a time `TopicService.skip_all`."""
        path = f"{_path(segment)}/subscription/{quote(subscription, safe='')}"
        move = "/skip-all" if timestamp_ms is None else "/seek?" + urlencode({"timestamp": timestamp_ms})
        await self._peers.request(owner, "POST", path + move)

    async def begin_migration(self, owner: str, topic: TopicName, asked: MigrationAsked, *, force: bool) -> None:
        """Write the first layout of the scalable topic `topic`: see `TopicService.begin_migration`."""
        parts = (topic.tenant, topic.namespace, topic.local, "begin-migration")
        path = "/admin/v2/scalable/" + "/".join(quote(part, safe="") for part in parts)
        given = {"force": str(force).lower(), "claim": asked.claim, "creation": asked.creation_id}
        await self._peers.request(owner, "POST", f"{path}?{urlencode(given)}")


def _connected(one: Any) -> ConnectedConsumer:  # noqa: ANN401 - JSON
    return ConnectedConsumer(
        str(one["consumerName"]),
        int(one["availablePermits"]),
        int(one["unackedMessages"]),
        int(one["msgOutCounter"]),
        int(one["bytesOutCounter"]),
    )


def _path(log: TopicName) -> str:
    parts = [log.tenant, log.namespace, log.local]
    if log.segment is not None:
        parts.append(str(log.segment))
    prefix = "/admin/v2/persistent/" if log.domain is Domain.PERSISTENT else "/admin/v2/segments/"
    return prefix + "/".join(quote(part, safe="") for part in parts)
