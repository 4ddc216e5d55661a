"""Read barriers that publishes share, because a broker's image of the metadata may be stale.

A transactional append checks that the header is open in this process's image. The image must be as new as the publish,
because a transaction that ended before the publish arrived accepts nothing more. So a read barrier begins after the
arrival and passes before the append. One barrier serves every publish that arrived before it began. So a producer that
appends its sends one after another waits for one barrier, not for one each.

The broker that decides for the store asks too. Another one may have taken over, and the barrier says so (C4). It gives
its answer without a pause. So publishes that go on in one step share one look at the fence.
"""

from storage.metadata.store import MetadataStore


class ReadBarriers:
    """The barriers of one segment, numbered from 1 in the order in which they begin."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._begun = 0
        self._passed = 0
        """The highest number of a passed barrier. At most `_begun`."""

    def next(self) -> int:
        """The number of the next barrier to begin. A publish that arrives now waits for it, or for a later one."""
        return self._begun + 1

    async def wait_passed(self, number: int) -> None:
        """Return once the barrier of this number, or a later one, has passed. It may have passed before.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        while self._passed < number:
            self._begun += 1
            mine = self._begun
            await self._metadata.barrier()
            self._passed = max(self._passed, mine)
