"""Requests about single segments, to the brokers that own them. The paths are those of `broker.http.segments`."""

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from broker.administration_contract import SegmentSubscription
from broker.names import TopicName
from broker.peers import Peers


class SegmentRequests:
    """Every `segment` is a `segment://` name. Every method raises `PeerSilent` and `PeerRefused`."""

    def __init__(self, peers: Peers) -> None:
        """Set up; `peers` are the other brokers."""
        self._peers = peers

    async def statistics(self, owner: str, segment: TopicName) -> Mapping[str, SegmentSubscription]:
        """Return the segment's subscriptions by name."""
        answer = await self._peers.request(owner, "GET", _path(segment) + "/stats")
        return {
            name: SegmentSubscription(int(counted["msgBacklog"]), frozenset(map(str, counted["consumers"])))
            for name, counted in answer["subscriptions"].items()
        }

    async def move(self, owner: str, segment: TopicName, subscription: str, timestamp_ms: int | None) -> None:
        """Move a subscription on the segment: see `TopicService.seek`, or without a time `TopicService.skip_all`."""
        path = f"{_path(segment)}/subscription/{quote(subscription, safe='')}"
        move = "/skip-all" if timestamp_ms is None else "/seek?" + urlencode({"timestamp": timestamp_ms})
        await self._peers.request(owner, "POST", path + move)


def _path(segment: TopicName) -> str:
    parts = (segment.tenant, segment.namespace, segment.local, str(segment.segment))
    return "/admin/v2/segments/" + "/".join(quote(part, safe="") for part in parts)
