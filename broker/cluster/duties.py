"""Which of the brokers does work that no client asks for (`txn.duty`).

| work                                     | done by                                     |
|------------------------------------------|---------------------------------------------|
| the transactions of a coordinator        | the owner of its shard                      |
| anything else: the decisions of a group  | the broker that the hash of the key prefers |

Brokers with other settings may have fewer shards. So a shard that this broker's settings do not have goes by the hash,
too. Then somebody does its work, whichever of the two settings counts.
"""

from collections.abc import Callable, Mapping

from broker.cluster.members import Members
from broker.cluster.ownership import HasEnded
from broker.cluster.placement import Member, worker
from broker.cluster.shards import Shards
from txn.duty import SHARDS


class Duties:
    """This broker's part. It is a `txn.duty.Duty`."""

    def __init__(self, members: Members, shards: Shards, has_ended: HasEnded, *, me: str) -> None:
        """Set up; `me` is the id of this broker. `has_ended` ends the session of a broker whose process has ended."""
        self._members = members
        self._shards = shards
        self._has_ended = has_ended
        self._me = me

    @property
    def is_alone(self) -> bool:
        """See `Duty`."""
        return self._members.is_alone

    def is_mine(self, key: str) -> bool:
        """See `Duty`."""
        if key.startswith(SHARDS):
            number = int(key.removeprefix(SHARDS))
            if number < self._shards.count:
                return self._shards.is_mine(number)
        return worker(key, self._members.live) == self._me

    async def see_to(self, key: str) -> None:
        """See `Duty`."""
        await living_worker(key, self._members.live, self._has_ended, me=self._me)

    def attach(self, listener: Callable[[], None]) -> None:
        """See `Duty`."""
        self._members.attach(listener)
        self._shards.attach_work(listener)


async def living_worker(key: str, members: Mapping[str, Member], has_ended: HasEnded, *, me: str) -> str | None:
    """Return the member that does the work called `key`, as `worker` does. Pass over those that have certainly ended.

    A broker that was killed stays registered until its session ends, and clients should not wait for that.

    Raises:
        StoreUnavailable: the store did not say whether a member has ended.
    """
    left = dict(members)
    while True:
        candidate = worker(key, left)
        if candidate is None or candidate == me or not await has_ended(candidate):
            return candidate
        del left[candidate]
