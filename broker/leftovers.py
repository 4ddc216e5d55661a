"""Has the op records applied that an ended transaction left on a segment.

The owner of a segment applies them as soon as the transaction ends. A segment that nobody owns has to be loaded for
that. The sweep that finds the records does not load it, as it would then own whatever it looks at (C16):

| the segment is owned by | and should be owned by | what is done                                            |
|-------------------------|------------------------|---------------------------------------------------------|
| this broker             | -                      | load it, if it is not loaded                            |
| another broker          | -                      | nothing: that broker applies the records                |
| nobody                  | this broker            | load it; it is unloaded again when it is idle           |
| nobody                  | another broker         | assign it to that broker, which loads it                |
| nobody                  | nobody: all drain      | nothing; the next sweep looks again                     |
"""

import structlog

from broker.cluster.assignments import Assignments, Why
from broker.cluster.locator import Locator
from broker.cluster.ownership import claim_key
from broker.errors import TopicNotFound
from broker.names import Domain, InvalidTopicName, TopicName
from broker.topics import Topics
from storage.errors import ExpectedError
from storage.metadata.store import ABSENT, Check, Conflict
from txn.errors import RecordUnreadable

log = structlog.get_logger(__name__)


class Leftovers:
    """See the module's docstring."""

    def __init__(self, topics: Topics, locator: Locator, assignments: Assignments, *, me: str) -> None:
        """Set up; `me` is the id of this broker."""
        self._topics = topics
        self._locator = locator
        self._assignments = assignments
        self._me = me

    async def redrive(self, segment: str) -> bool:
        """Have the records of a segment applied, here or by another broker. Return False if it no longer exists.

        If nobody can apply them now, they stay, and the next sweep tries again.

        Raises:
            RecordUnreadable: the name is not a segment's name.
            StoreUnavailable: the store does not answer.
        """
        name = _segment_named(segment)
        owner, candidate = await self._locator.owner_or_candidate(name)
        if self._me in (owner, candidate):
            return await self._topics.load_for_records(name)
        if not await self._topics.has_segment(name):
            return False
        if candidate is not None:
            await self._assign(name, candidate)
        return True

    async def redrive_partition(self, topic: str) -> bool:
        """As `redrive`, for a regular topic that takes part in a transaction of Kafka's clients."""
        try:
            name = TopicName.parse(topic)
        except InvalidTopicName as invalid:
            raise RecordUnreadable(str(invalid)) from invalid
        if not await self._topics.is_made(name):
            return False
        owner, candidate = await self._locator.owner_or_candidate(name)
        if self._me in (owner, candidate):
            try:
                await self._topics.get(name, creates=False)
            except TopicNotFound:
                return False
            except ExpectedError as error:
                log.warning("a partition of a decided transaction cannot be loaded", topic=topic, reason=str(error))
        elif candidate is not None:
            await self._assign(name, candidate)
        return True

    async def _assign(self, name: TopicName, to: str) -> None:
        try:
            await self._assignments.assign(str(name), to, Why.LEFTOVER, condition=Check(claim_key(str(name)), ABSENT))
        except Conflict:
            # Somebody has claimed it meanwhile, and applies the records.
            return
        except ExpectedError as error:
            log.warning("a segment of an ended transaction cannot be assigned", segment=str(name), reason=str(error))


def _segment_named(text: str) -> TopicName:
    try:
        name = TopicName.parse(text)
    except InvalidTopicName as invalid:
        raise RecordUnreadable(str(invalid)) from invalid
    if name.domain is not Domain.SEGMENT:
        # A request for a regular topic would create it.
        raise RecordUnreadable(f"{name} is not a segment, so it takes no transactions")
    return name
