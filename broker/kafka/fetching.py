"""Fetch: what partitions have, now or as soon as there is enough of it.

A fetch that finds too little waits for the watermarks of its partitions, and has no timer but its own deadline. Fetch
sessions (KIP-227) are not kept: each response says so, and clients then name all partitions in each request.

When a segment of a scalable topic is replaced, each connection that has read it before gets NOT_LEADER_OR_FOLLOWER at
its end: the fetch that waits there, or the next one. So its client asks for the metadata at once, and finds the
children. It is told TOLD_MAX times, because a client ignores the answer if its group rebalances meanwhile.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Final, NamedTuple

import trio

from broker.budgets import SHARE_BYTES, SendBudget
from broker.entry_codecs import Converter
from broker.errors import TopicClosed
from broker.kafka.errors import EXPECTED, Refused, SegmentPruned, code_of
from broker.kafka.reading import READ_COMMITTED, PartitionRead
from broker.kafka.requests import Api, Asked, take_turns
from broker.kafka.topics import KafkaTopics
from broker.topic import Topic
from broker.traffic import Traffic
from storage.signal import Signal
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

FETCH_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of one response, besides one larger batch."""

WAIT_MS_MAX: Final = 10 * 60 * 1000
"""The longest wait of one fetch."""

ABORTED_AT_ONCE: Final = 5_000
"""Aborted transactions of a response that one step makes. It takes about 3 ms."""

GROWING_MAX: Final = 10_000
"""Segments of which one connection remembers that it has read them while they took messages. Beyond that it forgets
those that it has not read for the longest time. Of these, only a fetch that waits at the end hears of a split."""

TOLD_MAX: Final = 3
"""How often one connection is told that a segment was replaced."""

WATCHED_MS_MIN: Final = 1_000
"""The shortest wait in which the connection is watched, so that it ends with its client. To watch costs as much as the
rest of the wait. Most clients wait for half a second, again and again."""

Wanted = Mapping[tuple[str, int], FetchPartition]
"""What a request wants, by topic and partition."""


class EmptyPartition(NamedTuple):
    """What a pruned segment leaves."""

    end: int
    """The only offset in it."""


Found = dict[tuple[str, int], PartitionRead | EmptyPartition | Exception]
"""What becomes of it."""


class FetchHandler:
    """Serves Fetch on one connection."""

    def __init__(self, topics: KafkaTopics, traffic: Traffic, sending: SendBudget, convert: Converter) -> None:
        self._topics = topics
        self._traffic = traffic
        self._sending = sending
        self._convert = convert
        self._growing: dict[tuple[str, int], int] = {}
        """Partitions of scalable topics that this connection has read while they took messages, the latest read last.
        How often it is told that they were replaced, once they are."""

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`. Up to version 12, topics go by their names."""
        return {ApiKey.FETCH: Api(FetchRequest, FetchResponse, 4, 12, self._fetch)}

    async def _fetch(self, request: FetchRequest, asked: Asked) -> FetchResponse:
        arrived = trio.current_time()
        if request.session_id and request.session_epoch > 0:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        is_committed = request.isolation_level == READ_COMMITTED
        # Each partition once, as in Kafka. Otherwise a small request could ask for a very large response.
        wanted = {
            (topic.topic, partition.partition): partition for topic in request.topics for partition in topic.partitions
        }
        found: Found = {}
        for key, partition in wanted.items():
            found[key] = await self._begin(key[0], partition, is_committed=is_committed)
        # A Java consumer that closes asks for nothing and waits for the answer. As in Kafka, it gets it at once.
        if wanted:
            await self._read(request, wanted, found, asked)
        parts: dict[str, list[PartitionData]] = {}
        for number, (key, partition) in enumerate(wanted.items()):
            await take_turns(number)
            part = await self._part(partition, found[key], is_committed=is_committed, arrived=arrived)
            parts.setdefault(key[0], []).append(part)
        responses = [FetchableTopicResponse(name, tuple(of_topic)) for name, of_topic in parts.items()]
        return FetchResponse(responses=tuple(responses))

    async def _begin(
        self, name: str, partition: FetchPartition, *, is_committed: bool
    ) -> PartitionRead | EmptyPartition | Exception:
        try:
            topic = await self._topics.partition(name, partition.partition)
            require_epoch(topic, partition.current_leader_epoch)
            read = PartitionRead(
                topic,
                partition.fetch_offset,
                is_committed=is_committed,
                convert=self._convert,
                knows_seal=self._knows_seal(topic, (name, partition.partition)),
            )
            read.require_in_range()
        except SegmentPruned as pruned:
            return EmptyPartition(pruned.end) if partition.fetch_offset == pruned.end else pruned
        except EXPECTED as error:
            return error
        return read

    def _knows_seal(self, topic: Topic, key: tuple[str, int]) -> bool:
        """Whether the client was told that the partition takes no more messages, or has never known it otherwise."""
        if topic.sealed_end is not None:
            return key not in self._growing
        if topic.scalable_topic is not None:
            self._growing.pop(key, None)
            self._growing[key] = TOLD_MAX
            # A client usually goes on to the children when it is told once, so that replaced segments stay behind.
            if len(self._growing) > GROWING_MAX:
                del self._growing[next(iter(self._growing))]
        return False

    def _told(self, key: tuple[str, int]) -> None:
        left = self._growing.get(key, 1) - 1
        if left:
            self._growing[key] = left
        else:
            self._growing.pop(key, None)

    async def _read(self, request: FetchRequest, wanted: Wanted, found: Found, asked: Asked) -> None:
        """Read until there is enough, or the deadline has passed. What fails is replaced by its error."""
        size_max = min(request.max_bytes, SHARE_BYTES if self._sending.is_short else FETCH_BYTES_MAX)
        signal = Signal()
        reads = {key: read for key, read in found.items() if isinstance(read, PartitionRead)}
        for read in reads.values():
            read.attach(signal)
        try:
            wait_ms = min(max(0, request.max_wait_ms), WAIT_MS_MAX)
            deadline = trio.current_time() + wait_ms / 1000
            while_connected = asked.while_connected if wait_ms >= WATCHED_MS_MIN else nullcontext
            # The deadline ends a wait and no read. On a slow disk, a consumer would otherwise never get anything.
            while not await self._read_on(request.min_bytes, size_max, wanted, reads, found):
                if any(isinstance(read, Exception) for read in found.values()):
                    return
                async with while_connected():
                    with trio.CancelScope(deadline=deadline) as waiting:
                        await signal.wait()
                if waiting.cancelled_caught:
                    return
        finally:
            for read in reads.values():
                read.detach(signal)

    async def _read_on(
        self,
        size_min: int,
        size_max: int,
        wanted: Wanted,
        reads: Mapping[tuple[str, int], PartitionRead],
        found: Found,
    ) -> bool:
        total = sum(read.size for read in reads.values())
        for number, (key, read) in enumerate(reads.items()):
            await take_turns(number)
            if read.topic.has_ended:
                found[key] = TopicClosed(f"This broker no longer serves {read.topic.name}. Ask for the metadata again.")
                return True
            if read.has_successors and not read.size:
                self._told(key)
                found[key] = TopicClosed(f"{read.topic.name} was replaced by others. Ask for the metadata again.")
                return True
            if read.is_at_end or (total and total >= size_max):
                continue
            before = read.size
            room = min(wanted[key].partition_max_bytes - before, size_max - total)
            try:
                await read.read_on(room, takes_one=not total)
            except EXPECTED as error:
                found[key] = error
                return True
            total += read.size - before
        return total >= size_min or total >= size_max

    async def _part(
        self,
        partition: FetchPartition,
        read: PartitionRead | EmptyPartition | Exception,
        *,
        is_committed: bool,
        arrived: float,
    ) -> PartitionData:
        aborted: tuple[AbortedTransaction, ...] | None = None
        if isinstance(read, EmptyPartition):
            aborted = () if is_committed else None
            return PartitionData(
                partition.partition,
                high_watermark=read.end,
                last_stable_offset=read.end,
                log_start_offset=read.end,
                aborted_transactions=aborted,
                records=(),
            )
        if isinstance(read, PartitionRead) and is_committed:
            try:
                found = []
                for number, one in enumerate(await read.aborted()):
                    await take_turns(number, ABORTED_AT_ONCE)
                    found.append(AbortedTransaction(one.producer_id, one.first))
                aborted = tuple(found)
            except EXPECTED as error:
                read = error
        if isinstance(read, Exception):
            return PartitionData(partition.partition, code_of(read), records=())
        first, last_stable, high_watermark = read.bounds
        self._traffic.messages_out += read.count
        self._traffic.bytes_out += read.size
        read.topic.delivered(read.count, read.size)
        if read.size and read.is_at_end:
            self._traffic.kafka.delivered(read.watermark, since=arrived)
        return PartitionData(
            partition.partition,
            high_watermark=high_watermark,
            last_stable_offset=last_stable,
            log_start_offset=first,
            aborted_transactions=aborted,
            records=read.pieces,
        )


def require_epoch(topic: Topic, epoch: int) -> None:
    """Check the leader epoch that a client believes in; negative if it believes in none (K44).

    Raises:
        Refused: it is another one.
    """
    if epoch < 0 or epoch == topic.ledger.leader_epoch:
        return
    is_old = epoch < topic.ledger.leader_epoch
    code = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
    raise Refused(code, f"The leader epoch of {topic.name} is {topic.ledger.leader_epoch}, not {epoch}.")
