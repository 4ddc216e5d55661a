"""Read barriers that publishes share, on a broker whose image of the metadata may be behind.

Whoever appends in a transaction holds that its header is open, as this process's image has it. The image has to be as
new as the publish: a transaction that was ended before the publish arrived takes nothing more. So a read barrier begins
after the arrival and passes before the append. One barrier serves every publish that arrived before it began. A
producer whose sends are appended one after another waits for one barrier, not for one each.
"""

from storage.metadata.store import MetadataStore


class ReadBarriers:
    """The barriers of one segment, numbered from 1 in the order in which they begin."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._begun = 0
        self._passed = 0
        """The highest number of a barrier that has passed, at most `_begun`."""

    def next(self) -> int:
        """The number of the next one to begin: whoever arrives now waits for that, or for a later one."""
        return self._begun + 1

    async def wait_passed(self, number: int) -> None:
        """Return once the barrier of this number, or a later one, has passed. At once where no image is ever behind.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        while self._passed < number and not self._metadata.authoritative:
            self._begun += 1
            mine = self._begun
            await self._metadata.barrier()
            self._passed = max(self._passed, mine)
