"""Removes the offsets of groups that are empty for long, and then the groups (K36).

The retention of an offset counts from its commit, or from the moment since which its group is empty, whichever is
later. An offset whose client asked for an end of its own has that one, if it is later than the next look. While a group
has members, its offsets stay.

Each group's record is in an index under the earliest moment that counts for any of its offsets. The sweep looks at the
groups whose retention has passed since that moment, deletes what has expired, and puts each group at its next moment.
So an idle sweep sleeps for as long as the retention. A group with members is put at the present. That also finds groups
whose members went away together with their coordinator: the look loads the group, and its members' sessions end.

Several brokers share the work by group: the coordinator does it, or the broker that should coordinate. Their clocks may
differ (`storage.ages`). So if there are several, they wait by SKEW_MAX_MS longer.
"""

from typing import Final

import structlog

from broker.kafka.groups.coordination import Coordination
from broker.kafka.groups.group_record import (
    BY_AGE,
    GROUPS_AT_ONCE,
    GroupRecordDamaged,
    StoredGroup,
    aged_before,
    from_value,
    group_key,
    group_of_key,
    moment_of,
)
from broker.kafka.groups.loaded import Loaded, Refused
from broker.kafka.groups.loaded_groups import LoadedGroups
from broker.kafka.groups.offsets import OffsetStore, StoredOffset
from broker.kafka.groups.values import GroupState
from storage.ages import SKEW_MAX_MS
from storage.clock import WallClock
from storage.metadata.store import Delete, MetadataStore, Record, StoreUnavailable
from txn.wall_clock_timer import WallClockTimer

AGAIN_MS: Final = 10 * 60 * 1000
"""How long after a look the sweep looks again at what it could not do, or what another broker has to do."""

LAST: Final = "\U0010ffff"

log = structlog.get_logger(__name__)


class OffsetExpiry:
    """See the module's docstring."""

    def __init__(
        self,
        groups: LoadedGroups,
        coordination: Coordination,
        metadata: MetadataStore,
        offsets: OffsetStore,
        *,
        retention_ms: int,
        wall_ms: WallClock,
    ) -> None:
        self._groups = groups
        self._coordination = coordination
        self._metadata = metadata
        self._offsets = offsets
        self._retention_ms = retention_ms
        self._wall_ms = wall_ms

    async def run(self) -> None:
        """Sweep until cancelled, whenever something may have expired."""
        timer = WallClockTimer(self._wall_ms)
        while True:
            timer.at_latest(await self.sweep())
            await timer.wait()

    async def sweep(self) -> int:
        """Remove what has expired. Return when to look again, at the latest."""
        time_ms, span_ms = self._wall_ms(), self._span_ms()
        cutoff = aged_before(time_ms - span_ms + 1)
        start, is_all_done = "", True
        try:
            while page := await self._metadata.query(BY_AGE, start, cutoff, limit=GROUPS_AT_ONCE):
                for hit in page:
                    is_all_done &= await self._look(hit.record, time_ms - span_ms)
                start = page[-1].index_key + "\0"
            next_ = await self._metadata.query(BY_AGE, cutoff, LAST, limit=1)
        except StoreUnavailable as unanswered:
            log.warning("a sweep of offsets had no answer", reason=str(unanswered))
            return time_ms + AGAIN_MS
        # What is stored from now on is later than that.
        moments = [time_ms + span_ms, *(moment_of(hit.index_key) + span_ms for hit in next_)]
        return min(moments if is_all_done else [*moments, time_ms + AGAIN_MS])

    def _span_ms(self) -> int:
        return self._retention_ms + (0 if self._coordination.is_alone else SKEW_MAX_MS)

    async def _look(self, record: Record, until_ms: int) -> bool:
        """Look at one group. Return whether nothing is left to do for now. What counts until `until_ms` has expired."""
        name = group_of_key(record.key)
        try:
            stored = from_value(record.key, record.value)
        except GroupRecordDamaged as damaged:
            log.error("the offsets of a consumer group do not expire", group=name, reason=str(damaged))
            return True
        if not self._coordination.is_mine(name, await self._coordination.owner(name)):
            return False
        try:
            async with self._groups.alone(name) as loaded:
                if loaded is None or loaded.version != record.version:
                    # It is gone, or has just been stored. Then it is in the index at another place.
                    return True
                if loaded.group.is_vacant:
                    await self._expire(loaded, stored, until_ms)
                elif loaded.group.state is GroupState.EMPTY:
                    # Somebody is about to join.
                    return False
                else:
                    await self._groups.write_record(
                        loaded, stored.record, since_ms=stored.since_ms, from_ms=self._wall_ms()
                    )
        except Refused as refused:
            log.warning("the offsets of a consumer group did not expire yet", group=name, reason=str(refused))
            return False
        return True

    async def _expire(self, loaded: Loaded, stored: StoredGroup, until_ms: int) -> None:
        has_had_members = stored.record.protocol_type is not None
        since_ms = stored.since_ms if has_had_members else 0
        found = [(self._counts_from_ms(offset, since_ms), offset) for offset in await self._offsets.scan(loaded.name)]
        expired = [offset for from_ms, offset in found if from_ms <= until_ms]
        left = [from_ms for from_ms, _ in found if from_ms > until_ms]
        if await self._offsets.deferred(loaded.name):
            # A transaction that is open may bring an offset. It would have no group, and stay for good.
            left.append(self._wall_ms())
        async with self._groups.writes(loaded):
            await self._offsets.delete(expired, loaded.conditions)
            if not left:
                await self._metadata.commit([Delete(group_key(loaded.name), loaded.version), loaded.claim])
        if left:
            await self._groups.write_record(loaded, stored.record, since_ms=stored.since_ms, from_ms=min(left))
        # Nobody asked for it. A sweep must not fill the memory with groups.
        await self._groups.resign(loaded)
        log.info("offsets of a consumer group have expired", group=loaded.name, expired=len(expired), left=len(left))

    def _counts_from_ms(self, stored: StoredOffset, since_ms: int) -> int:
        """The moment from which the retention of an offset counts."""
        offset = stored.offset
        if offset is None:
            # It is damaged. Somebody may still want to see what it was.
            return self._wall_ms()
        if offset.expires_ms is not None:
            return offset.expires_ms - self._retention_ms
        return max(offset.committed_ms, since_ms)
