"""Reports this broker's own load to the metadata store, for placement (`broker.cluster.broker_load`)."""

from collections.abc import Callable

import structlog

from broker.cluster.broker_load import BROKER_LOADS, IDLE, BrokerLoad, LoadWindow
from broker.loop_monitor import LoopMonitor
from broker.traffic import Traffic
from storage.metadata.store import MetadataError, MetadataStore, Session

log = structlog.get_logger(__name__)


class OwnLoad:
    """Samples this broker when it is asked to. It runs nothing by itself."""

    def __init__(
        self,
        metadata: MetadataStore,
        session: Session,
        traffic: Traffic,
        loop: LoopMonitor,
        topics: Callable[[], int],
        *,
        me: str,
        sample_seconds: float,
    ) -> None:
        """Set up.

        Args:
            metadata: the store of the reports.
            session: the report ends with it.
            traffic: this broker's traffic.
            loop: the measurements of its event loop.
            topics: returns how many topics it has loaded.
            me: its id.
            sample_seconds: the time between two samples.
        """
        self._metadata = metadata
        self._session = session
        self._traffic = traffic
        self._loop = loop
        self._topics = topics
        self._key = BROKER_LOADS + me
        self._window = LoadWindow(sample_seconds)
        self._reported: BrokerLoad | None = IDLE
        """The report in the store; none stands for IDLE. None if it is unknown."""

    def begin(self) -> None:
        """Begin to sample, after a time without traffic."""
        self._window.begin(self._loop.cpu_seconds, self._traffic.bytes_in, self._traffic.bytes_out)

    async def sample(self) -> bool:
        """Take a sample, and report it if it has changed noticeably.

        Return True if there was any traffic, or if the store did not take the report.
        """
        load = self._window.take(
            self._loop.cpu_seconds, self._traffic.bytes_in, self._traffic.bytes_out, self._topics()
        )
        if self._reported is None or load.differs(self._reported):
            self._reported = None
            try:
                await self._metadata.put(self._key, load.encode(), session=self._session)
            except MetadataError as error:
                # A report is only advice and is repeated later. Other code ends the broker if the store has ended.
                log.warning("the load of this broker was not reported", reason=str(error))
                return True
            self._reported = load
        return bool(load.bytes_in or load.bytes_out)
