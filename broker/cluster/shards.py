"""Shards: which broker ends and forgets the transactions of each coordinator.

A shard is the claim `coordinator://<n>`, under `/owners/` like any other claim. It spreads work and clients, but it
protects nothing: any broker may act as any coordinator, because every step of a transaction is conditional (T10). So a
shard may change hands at any moment. Every broker follows all claims of shards and all members:

| the shard is    | the preferred broker is | this broker                                  |
|-----------------|-------------------------|----------------------------------------------|
| nobody's        | this one                | claims it                                    |
| this broker's   | another one             | releases it, and the other one claims it     |
| another's       | any                     | does nothing; the claim ends with its session |

The preferred broker follows from the members alone (`broker.cluster.placement`). All brokers that see the same members
agree on it. While they do not, a shard may be nobody's for a moment.

Clients learn the owners' addresses. A shard that nobody owns has the address of its preferred broker. Changes that come
close together are told at once, at most once a second.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from typing import Final

import structlog
import trio

from broker.cluster.members import Members
from broker.cluster.ownership import Claims, ClaimUnreadable, OwnedElsewhere, Owner, claim_key, claimed_name, owner_in
from broker.cluster.placement import Member, worker
from broker.store_retry import RETRY_SECONDS
from storage.metadata.store import Change, Check, MetadataStore, SessionLost, StoreUnavailable, starting_with
from storage.signal import Signal
from txn.duty import SHARDS, shard_name

PREFIX: Final = claim_key(SHARDS)

CLAIMS_AT_ONCE: Final = 32
"""Claims that are written together, so that they share the store's syncs."""

TELL_SECONDS_MIN: Final = 1.0
"""The time between two changes that clients are told of."""

PREFERRED_AT_ONCE: Final = 64
"""Shards whose broker is found in one step of the event loop, which takes about 10 ms with 100 brokers."""

TOLD_AT_ONCE: Final = 64
"""Connections that are told in one step of the event loop, which takes about 3 ms with 16 shards."""

Listener = Callable[[], None]

log = structlog.get_logger(__name__)


class Shards:
    """The shards as one broker sees them, and those that it owns."""

    def __init__(self, claims: Claims, metadata: MetadataStore, members: Members, *, count: int) -> None:
        """Set up.

        Args:
            claims: this broker's claims.
            metadata: the store of the claims.
            members: the brokers that the shards are spread over.
            count: how many coordinators there are.
        """
        self.count: Final = count
        self._numbers = {shard_name(number): number for number in range(count)}
        self._claims = claims
        self._me = claims.broker_id
        self._metadata = metadata
        self._members = members
        self._owners: dict[int, Owner] = {}
        """Who has the claims, as the watch shows them."""
        self._held: dict[int, Check] = {}
        """The claims of this session."""
        self._superseded: set[int] = set()
        """Shards that a later run of this broker has taken over. This run is about to end."""
        self._mine: set[int] = set()
        """The shards whose work this broker does: all that it holds, but for those that it is releasing."""
        self._preferred: list[Owner] = []
        """Who should have the claims, by shard; empty before the first look at the members."""
        self._judged: Mapping[str, Member] | None = None
        """The members that `_preferred` is about."""
        self._changed = Signal()
        self._to_tell = Signal()
        self._followers: dict[Listener, None] = {}
        self._workers: list[Listener] = []
        members.attach(self._changed.set)

    def is_mine(self, number: int) -> bool:
        """Return whether this broker does the work of the shard."""
        return number in self._mine

    def attach_work(self, listener: Listener) -> None:
        """Call `listener` whenever an answer of `is_mine` has changed. It must not block."""
        self._workers.append(listener)

    def follow(self, listener: Listener) -> None:
        """Call `listener` whenever clients should learn of other addresses, until `unfollow`. It must not block."""
        self._followers[listener] = None

    def unfollow(self, listener: Listener) -> None:
        """Undo `follow`. No effect if there was none."""
        self._followers.pop(listener, None)

    def elsewhere(self) -> Mapping[int, str]:
        """Return the URLs of the other brokers that clients should use as coordinators, by shard."""
        found: dict[int, str] = {}
        for number, preferred in enumerate(self._preferred):
            broker, url = self._owners.get(number, preferred)
            if broker != self._me and url:
                found[number] = url
        return found

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Claim and release shards until cancelled. It reports as started once it knows all existing claims."""
        async with self._metadata.watch_range(*starting_with(PREFIX)) as watch, trio.open_nursery() as nursery:
            self._owners.clear()
            self._superseded.clear()
            self._hear(await watch.next())
            for number in self._held.keys() - self._owners.keys():
                self._lose(number)
            await self._prefer()
            nursery.start_soon(self._spread)
            nursery.start_soon(self._tell)
            task_status.started()
            while True:
                self._hear(await watch.next())
                self._changed.set()

    def _hear(self, change: Change) -> None:
        for key in change.deleted:
            number = self._number_of(key)
            if number is not None:
                self._owners.pop(number, None)
                self._superseded.discard(number)
                self._require_held(number, change.revision)
        for record in change.records:
            number = self._number_of(record.key)
            if number is not None:
                try:
                    self._owners[number] = owner_in(record)
                except ClaimUnreadable as unreadable:
                    # Some broker has the claim, so this broker must not act.
                    log.error("a claim is damaged", key=record.key, reason=str(unreadable))
                    self._owners[number] = Owner("", "")
                if not self._require_held(number, record.version):
                    self._superseded.add(number)

    def _number_of(self, key: str) -> int | None:
        """Return the shard whose claim has this key; None for a shard that this broker's settings do not have."""
        return self._numbers.get(claimed_name(key))

    def _require_held(self, number: int, revision: int) -> bool:
        """Note that the claim is another one since `revision`. Return False if this broker has lost it by that."""
        held = self._held.get(number)
        if held is None or revision <= held.expected:
            return True
        self._lose(number)
        return False

    def _lose(self, number: int) -> None:
        self._claims.forget(self._held.pop(number))
        self._give_up({number})

    async def _spread(self) -> None:
        while True:
            await self._prefer()
            self._to_tell.set()
            wanted = {number for number, (broker, _) in enumerate(self._preferred) if broker == self._me}
            own = {number for number, owner in self._owners.items() if owner.broker_id == self._me}
            leaving = self._held.keys() - wanted
            self._take_up(self._held.keys() & wanted)
            self._give_up(leaving)
            # Also its own that it does not hold: a claim of an earlier run, or one whose answer was lost.
            own -= self._superseded
            taking = [number for number in wanted - self._held.keys() if number in own or number not in self._owners]
            failed = await self._each(leaving, self._release) + await self._each(taking, self._claim)
            if failed:
                log.warning("shards of coordinators could not be claimed or released yet", reason=str(failed[0]))
                await trio.sleep(RETRY_SECONDS)
            else:
                await self._changed.wait()

    async def _prefer(self) -> None:
        """Find the preferred broker of each shard, among the members of now."""
        live = self._members.live
        if live is self._judged:
            return
        found: list[Owner] = []
        for number in range(self.count):
            if number % PREFERRED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            broker = worker(shard_name(number), live)
            found.append(Owner("", "") if broker is None else Owner(broker, live[broker].service_url))
        self._preferred, self._judged = found, live

    async def _each(self, numbers: Iterable[int], change: Callable[[int], Awaitable[None]]) -> list[StoreUnavailable]:
        """Change these claims side by side. Return the failures after which it must be tried again."""
        failed: list[StoreUnavailable] = []
        places = trio.CapacityLimiter(CLAIMS_AT_ONCE)

        async def change_one(number: int) -> None:
            async with places:
                try:
                    await change(number)
                except StoreUnavailable as unanswered:
                    failed.append(unanswered)

        async with trio.open_nursery() as nursery:
            for number in sorted(numbers):
                nursery.start_soon(change_one, number)
        return failed

    async def _claim(self, number: int) -> None:
        try:
            self._held[number] = await self._claims.claim(shard_name(number))
        except (OwnedElsewhere, SessionLost):
            # The watches show when the other broker's claim ends, and when this broker no longer drains. Without a
            # session, it is about to end.
            return
        self._take_up({number})

    async def _release(self, number: int) -> None:
        held = self._held.get(number)
        if held is not None:
            await self._claims.release(held)
            self._held.pop(number, None)

    def _take_up(self, numbers: Set[int]) -> None:
        if numbers - self._mine:
            self._mine |= numbers
            self._tell_workers()

    def _give_up(self, numbers: Set[int]) -> None:
        if numbers & self._mine:
            self._mine -= numbers
            self._tell_workers()

    def _tell_workers(self) -> None:
        for listener in self._workers:
            listener()

    async def _tell(self) -> None:
        """Tell clients of changes, and pause after each."""
        told = self.elsewhere()
        while True:
            await self._to_tell.wait()
            found = self.elsewhere()
            if found == told:
                continue
            told = found
            for number, listener in enumerate(tuple(self._followers), 1):
                if listener in self._followers:
                    listener()
                if number % TOLD_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            await trio.sleep(TELL_SECONDS_MIN)
