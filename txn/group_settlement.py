"""The task that writes decisions of groups into the headers of their transactions.

A group's record holds the decision (`txn.groups`). This task learns of it by a watch. One broker settles each group, by
its duty (`txn.duty`). If that broker dies in between, the next one with that duty does the rest. So does the next start
of a broker that was alone.
"""

from collections.abc import Sequence
from typing import Final

import structlog
import trio

from storage.metadata.store import Change, MetadataStore, StoreUnavailable, starting_with
from storage.signal import Signal
from txn.counters import OpCounters
from txn.duty import Duty
from txn.group_record import KEY_PREFIX, GroupRecord, GroupState, application_of, group_key
from txn.groups import TransactionGroups
from txn.header_watch import RecordFollower
from txn.headers import BY_GROUP, Header
from txn.unreadable import Unreadable

UNANSWERED_SECONDS: Final = 1.0
"""How long after the metadata store gave no answer it is asked again."""

log = structlog.get_logger(__name__)


class GroupSettlement:
    """See the module's docstring."""

    def __init__(
        self,
        groups: TransactionGroups,
        metadata: MetadataStore,
        *,
        duty: Duty,
        counters: OpCounters,
        follower: RecordFollower,
    ) -> None:
        """Set up.

        Args:
            groups: writes one decision into its headers.
            metadata: holds records and headers.
            duty: this broker's part.
            counters: counts queries.
            follower: told of every group's record that is written or removed while this runs.
        """
        self._groups = groups
        self._metadata = metadata
        self._duty = duty
        self._counters = counters
        self._follower = follower
        self._unreadable = Unreadable()
        self._duty_changed = Signal()
        duty.attach(self._duty_changed.set)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Settle decisions until cancelled. Started once earlier decisions of this broker's groups are settled."""
        async with self._metadata.watch_range(*starting_with(KEY_PREFIX)) as watch, trio.open_nursery() as nursery:
            await watch.next()
            await self._settle_left()
            task_status.started()
            nursery.start_soon(self._take_over)
            while True:
                await self._settle(self._decided(await watch.next()))

    async def _take_over(self) -> None:
        """Settle what other brokers left, whenever their groups may have become this one's."""
        while True:
            await self._duty_changed.wait()
            try:
                await self._settle_left()
            except StoreUnavailable as unanswered:
                log.warning("the groups of other brokers are not taken up yet", reason=str(unanswered))
                await trio.sleep(UNANSWERED_SECONDS)
                self._duty_changed.set()

    async def _settle_left(self) -> None:
        applications: set[str] = set()
        async for hit in self._counters.each_hit(self._metadata, BY_GROUP, *starting_with("")):
            with self._unreadable.reading(hit.record.key):
                group = Header.from_value(hit.record.value).group
                applications.update(() if group is None else (group.application,))
        await self._settle(sorted(applications))

    def _decided(self, change: Change) -> list[str]:
        """The applications that a change decides."""
        for key in change.deleted:
            self._follower.removed(key)
        decided: list[str] = []
        for record in change.records:
            with self._unreadable.reading(record.key):
                self._follower.shown(record)
                if GroupRecord.from_value(record.value).state is not GroupState.OPEN:
                    decided.append(application_of(record.key))
        return decided

    async def _settle(self, applications: Sequence[str]) -> None:
        for application in applications:
            key = group_key(application)
            while self._duty.is_mine(key):
                try:
                    with self._unreadable.reading(key):
                        await self._groups.settle(application)
                    break
                except StoreUnavailable as unanswered:
                    log.warning(
                        "the decision of a group is not written into its headers yet",
                        group=application,
                        reason=str(unanswered),
                    )
                    await trio.sleep(UNANSWERED_SECONDS)
