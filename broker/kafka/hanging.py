"""WriteTxnMarkers: an administrator ends a transaction that hangs on a partition (KIP-664).

It is for data without a marker whose transaction the coordinator does not know any more. Damage can leave such data. If
the partition is registered in the producer's transaction, the coordinator decides, and the marker is refused.

An administrator guesses the coordinator's epoch. Here coordinators have no terms, so no marker gets a higher one than
theirs. Otherwise the partition would refuse the markers of all later transactions of the producer.
"""

from collections.abc import Mapping

from broker.kafka.errors import EXPECTED, Refused, code_of
from broker.kafka.markers import MARKERS
from broker.kafka.requests import Api, Asked
from broker.kafka.topics import KafkaTopics
from storage.clock import WallClock
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.offsets import OffsetCommitResponsePartition, OffsetCommitResponseTopic
from tidewire.wire.kafka.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from txn.kafka_settlement import COORDINATOR_EPOCH
from txn.marked_log import Ended
from txn.producer_states import EndMarker


class HangingHandler:
    """Serves WriteTxnMarkers on one connection."""

    def __init__(self, topics: KafkaTopics, now_ms: WallClock) -> None:
        self._topics = topics
        self._now_ms = now_ms

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`."""
        return {ApiKey.WRITE_TXN_MARKERS: Api(WriteTxnMarkersRequest, WriteTxnMarkersResponse, 1, 1, self._write)}

    async def _write(self, request: WriteTxnMarkersRequest, _asked: Asked) -> WriteTxnMarkersResponse:
        results = []
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                parts = [
                    OffsetCommitResponsePartition(index, await self._end(topic.name, index, marker))
                    for index in topic.partition_indexes
                ]
                topics.append(OffsetCommitResponseTopic(topic.name, tuple(parts)))
            results.append(WritableTxnMarkerResult(marker.producer_id, tuple(topics)))
        return WriteTxnMarkersResponse(tuple(results))

    async def _end(self, name: str, index: int, marker: WritableTxnMarker) -> ErrorCode:
        try:
            if min(marker.producer_id, marker.producer_epoch) < 0:
                raise Refused(
                    ErrorCode.INVALID_REQUEST,
                    f"No producer has the id {marker.producer_id} and the epoch {marker.producer_epoch}.",
                )
            topic = await self._topics.writable(name, index)
            markers = topic.markers
            await markers.admit_producer()
            if await markers.transactions.is_registered(marker.producer_id):
                raise Refused(
                    ErrorCode.INVALID_TXN_STATE,
                    f"Producer {marker.producer_id} is in a transaction that the coordinator knows. End it there.",
                )
            # Without a pause since the question, so that nothing of a transaction comes in between.
            coordinator_epoch = min(marker.coordinator_epoch, COORDINATOR_EPOCH)
            end = EndMarker(marker.producer_id, marker.producer_epoch, coordinator_epoch, bumps_epoch=False)
            payload = MARKERS.build(end, marker.transaction_result, self._now_ms())
            appended = markers.append_marker(payload, Ended(end, marker.transaction_result))
            await topic.ledger.confirmed.wait_for(appended.position)
        except EXPECTED as error:
            return code_of(error)
        return ErrorCode.NONE
