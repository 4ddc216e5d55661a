"""Follows the records of transactional ids: wakes who waits for one, and tells of each decision.

Every broker follows all of them, as it follows the headers of v5 transactions. So an owner learns of a decision without
a call from the coordinator, and a request that waits for the end of a transaction is woken by the record itself.
"""

from collections.abc import Callable

import trio

from storage.metadata.store import MetadataStore, starting_with
from txn.header_watch import RecordFollower
from txn.kafka_transaction import KEY_PREFIX, KafkaTransaction, transactional_id_of
from txn.unreadable import Unreadable

Listener = Callable[[str], None]
"""Called with a transactional id whose transaction is decided. It must not block."""


class KafkaTransactionWatch:
    """See the module's docstring."""

    def __init__(self, metadata: MetadataStore) -> None:
        """Set up. `run` does the work."""
        self._metadata = metadata
        self._followers: list[RecordFollower] = []
        self._listeners: list[Listener] = []
        self._waiting: dict[str, trio.Event] = {}
        self._unreadable = Unreadable()

    def attach(self, follower: RecordFollower) -> None:
        """Tell `follower` of every record that is written or removed while this runs."""
        self._followers.append(follower)

    def attach_decisions(self, listener: Listener) -> None:
        """Call `listener` for each decision, also for those that were made before this runs."""
        self._listeners.append(listener)

    async def wait_changed(self, key: str, version: int) -> None:
        """Return once the record at `key` is newer than `version`, as this process knows it."""
        while True:
            event = self._waiting.setdefault(key, trio.Event())
            known = self._metadata.peek(key)
            if known is not None and known.version > version:
                return
            await event.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the records until cancelled. Started once the watch is open."""
        async with self._metadata.watch_range(*starting_with(KEY_PREFIX)) as watch:
            is_started = False
            async for change in watch:
                for key in change.deleted:
                    for follower in self._followers:
                        follower.removed(key)
                    self._wake(key)
                for record in change.records:
                    # A damaged record leaves its transaction as it is here. The others go on.
                    with self._unreadable.reading(record.key):
                        for follower in self._followers:
                            follower.shown(record)
                        if KafkaTransaction.from_value(record.value).state.is_ending:
                            for listener in self._listeners:
                                listener(transactional_id_of(record.key))
                    self._wake(record.key)
                if not is_started:
                    is_started = True
                    task_status.started()

    def _wake(self, key: str) -> None:
        event = self._waiting.pop(key, None)
        if event is not None:
            event.set()
