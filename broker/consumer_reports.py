"""Tells the controllers of scalable topics which segments their consumers have taken up, and which they have closed.

An ordered consumer registers at the topic's controller, and reads each of its segments at that segment's owner. If the
two are one broker and the client uses one connection, the connection itself connects the two
(`broker.pulsar.registry`). Otherwise the owner reports them to the controller, over HTTP if that is another broker. The
Java client has no command to leave a group, and loses assignments that come before it has taken up its first one. So
the controller cannot do without these reports.

Reports wait in one queue for each controller, and are sent together, in order. They are sent until the controller has
them, or is no longer the controller. The next one begins with the registrations that its own connections bring.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import structlog
import trio

from broker.cluster.elections import Elections
from broker.errors import BrokerError
from broker.names import TopicName
from broker.peers import PeerRefused, Peers, PeerSilent
from broker.scalable.consumer_groups import ConsumerGroups

PATH: Final = "/admin/v2/cluster/consumers"
WAITING_MAX: Final = 10_000
"""Most reports that wait for one controller. Beyond it, the oldest one is dropped."""
SENT_AT_ONCE: Final = 256
"""Most reports in one request."""
NOT_CONTROLLER: Final = 409
"""The HTTP status of `NotController`."""
RETRY_SECONDS: Final = 1.0
"""The pause after a controller did not answer."""

log = structlog.get_logger(__name__)


class InvalidReports(BrokerError):
    """A request with reports cannot be understood."""


class NotController(BrokerError):
    """Some reports are about topics that this broker does not control. The others were applied."""


class SegmentConsumer(NamedTuple):
    """A consumer of one segment, which belongs to an ordered consumer of the whole topic."""

    topic: TopicName
    """The `topic://` name."""
    subscription: str | None
    """None for a checkpoint consumer, which keeps its own positions."""
    consumer: str
    """The name of the ordered consumer."""
    segment_id: int


class Report(NamedTuple):
    """What such a consumer does."""

    consumer: SegmentConsumer
    is_open: bool
    """Whether it has taken the segment up; else its client has closed it."""
    session: str = ""
    """The id of its session at the segment's owner. Reports of two owners may overtake each other, and a client may
    close a consumer and open it again. Empty if the owner's release does not tell it."""


_Waiting = dict[tuple[SegmentConsumer, bool], Report]
"""The newest report of each kind about each consumer, oldest first."""


class ConsumerReports:
    """Sends the reports of this broker, and passes on those that it gets."""

    def __init__(
        self, groups: ConsumerGroups, elections: Elections, peers: Peers, nursery: trio.Nursery, *, me: str
    ) -> None:
        """Set up.

        Args:
            groups: the groups that this broker controls.
            elections: who controls a topic.
            peers: the other brokers.
            nursery: runs a task for each controller that has reports waiting.
            me: the id of this broker.
        """
        self._groups = groups
        self._elections = elections
        self._peers = peers
        self._nursery = nursery
        self._me = me
        self._waiting: dict[str, _Waiting] = {}
        """By controller."""

    def report(self, report: Report) -> None:
        """Tell the topic's controller. This does not block."""
        consumer = report.consumer
        controller = self._elections.controller_of(consumer.topic)
        if controller is None:
            # Whoever becomes the controller begins with the consumers that register there.
            return
        if controller.broker_id == self._me:
            self._apply(report)
            return
        waiting = self._waiting.get(controller.broker_id)
        if waiting is None:
            waiting = self._waiting[controller.broker_id] = {}
            self._nursery.start_soon(self._send_all, controller.broker_id, waiting)
        if report.is_open:
            # It was closed before. That must not count as closed again.
            waiting.pop((consumer, False), None)
        waiting.pop((consumer, report.is_open), None)
        waiting[consumer, report.is_open] = report
        if len(waiting) > WAITING_MAX:
            dropped = next(iter(waiting))
            del waiting[dropped]
            log.warning("a report about a consumer was dropped", topic=str(consumer.topic), broker=controller.broker_id)

    def take(self, content: Mapping[str, object]) -> None:
        """Apply what another broker reports about topics that this broker controls.

        Raises:
            InvalidReports: nothing was applied.
            NotController: some are about other topics. The rest was applied.
        """
        stale: dict[TopicName, None] = {}
        for report in decode(content):
            if self._elections.holds(report.consumer.topic) is None:
                stale[report.consumer.topic] = None
            else:
                self._apply(report)
        if stale:
            raise NotController(
                f"Broker {self._me} does not control {', '.join(map(str, stale))}, so it ignored the reports about "
                "consumers there. The consumers register at the next controller."
            )

    def _apply(self, report: Report) -> None:
        consumer = report.consumer
        members = self._groups.members_named(consumer.topic, consumer.subscription, consumer.consumer)
        for member in members:
            if report.is_open:
                member.taken_up(consumer.segment_id, report.session)
            elif len(members) == 1:
                member.closed(consumer.segment_id, report.session)
            # Otherwise nobody can tell which one of several groups it is. The end of its connection will tell.

    async def _send_all(self, controller: str, waiting: _Waiting) -> None:
        """Send what waits for one controller, also what comes meanwhile."""
        while waiting:
            sent = [waiting.pop(key) for key in list(waiting)[:SENT_AT_ONCE]]
            try:
                await self._peers.request(controller, "POST", PATH, encode(sent))
            except PeerRefused as refused:
                # A broker that is the controller no more needs none. It has told its consumers to register elsewhere.
                say = log.info if refused.status_code == NOT_CONTROLLER else log.warning
                say("a broker refused reports about consumers", broker=controller, reason=str(refused))
            except PeerSilent as silent:
                log.info("reports about consumers wait for their controller", broker=controller, reason=str(silent))
                await trio.sleep(RETRY_SECONDS)
                newer = list(waiting.values())
                waiting.clear()
                # Their topics may have another controller by now.
                for report in (*sent, *newer):
                    self.report(report)
        del self._waiting[controller]


def encode(reports: Iterable[Report]) -> dict[str, object]:
    """Return the reports as a JSON map."""
    return {
        "reports": [
            {
                "topic": str(one.topic),
                "subscription": one.subscription,
                "consumer": one.consumer,
                "segment": one.segment_id,
                "open": is_open,
                "session": session,
            }
            for one, is_open, session in reports
        ]
    }


def decode(content: Mapping[str, object]) -> list[Report]:
    """Undo `encode`. Fields that this release does not know are ignored.

    Raises:
        InvalidReports: it is something else.
    """
    reports = content.get("reports")
    if not isinstance(reports, list) or not all(isinstance(one, dict) for one in reports):
        raise InvalidReports("The body must be a JSON map with a list of maps as `reports`.")
    try:
        return [
            Report(
                SegmentConsumer(
                    TopicName.parse(one["topic"]),
                    None if one["subscription"] is None else str(one["subscription"]),
                    str(one["consumer"]),
                    int(one["segment"]),
                ),
                bool(one["open"]),
                str(one.get("session", "")),
            )
            for one in reports
        ]
    except (KeyError, TypeError, ValueError) as wrong:
        raise InvalidReports(f"A report about a consumer is incomplete or has a wrong field: {wrong!r}.") from wrong
