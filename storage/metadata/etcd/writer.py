"""Makes change sets in etcd, each exactly once however often its request had to be sent.

A change set goes through a *slot*: a key that counts what was made through it, which every request is conditioned on
(requests.py). A process has at most WRITES_IN_FLIGHT_MAX slots, all bound to a lease of its own, so they vanish after
it. If an answer is lost the same request is sent again: of all its copies one is made. If etcd then says no (a
conflict, say), an earlier copy may still be under way, so the slot is burnt before that is believed. Only when no
answer comes in time is the outcome unknown, and that slot is never used again.

Each change set is sent by a task of the store: if whoever proposed it is cancelled it still stands, as in the other
stores. It is answered when this process's image holds it, so whoever wrote finds it there.

Sequential puts take their numbers one change set at a time, on the condition that the counter is where the last one
left it; only other processes can interfere, and then the request is made anew.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import trio

from storage.metadata.etcd.follower import Follower
from storage.metadata.etcd.keys import Keys
from storage.metadata.etcd.leases import Lease, Leases
from storage.metadata.etcd.requests import (
    REQUEST_BYTES_MAX,
    Applied,
    AppliedEarlier,
    ChangeSet,
    Counter,
    CounterMoved,
    Slot,
    SlotLost,
    burn,
    is_burnt,
)
from storage.metadata.etcd.retry import Attempts, Retry
from storage.metadata.etcd.rpc import TXN, Rpc, RpcError
from storage.metadata.store import (
    Committed,
    Conflict,
    MetadataError,
    Op,
    Put,
    SessionLost,
    StoreUnavailable,
)

WRITES_IN_FLIGHT_MAX: Final = 64
"""Change sets of one process that are on their way to etcd at one time."""

WRITES_WAITING_MAX: Final = 4096
"""Change sets that wait to be on their way; more writers wait to be heard."""

SMALL_BYTES: Final = REQUEST_BYTES_MAX // 8
"""A change set of this size cannot become too large a request: each key stands in one three times, behind the root."""

WRITER_LEASE_SECONDS: Final = 60
"""How long the slots of a process that died stay."""


class Writer:
    """The change sets of one process."""

    def __init__(self, rpc: Rpc, keys: Keys, retry: Retry, follower: Follower, leases: Leases) -> None:
        self._rpc = rpc
        self._keys = keys
        self._retry = retry
        self._follower = follower
        self._leases = leases
        self._lease: Lease | None = None
        self._renewing = trio.Lock()
        self._slots_made = 0
        self._free: list[Slot] = []
        self._in_flight = trio.Semaphore(WRITES_IN_FLIGHT_MAX)
        self._room = trio.Semaphore(WRITES_WAITING_MAX)
        self._sequence = trio.Lock()
        self._counter = Counter(0, 0)
        self.waiting = 0
        """Change sets that were not answered yet."""
        self.repeated = 0
        """Requests that were sent again."""
        self.recounted = 0
        """Requests made anew because the counter had moved."""

    async def write(self, ops: Sequence[Op], size: int, nursery: trio.Nursery) -> Committed:
        """Make a change set that passed `measure`, which said `size`; see `MetadataStore.commit`."""
        change_set = ChangeSet(ops, self._keys)
        if size > SMALL_BYTES:
            # Built for its size alone, so that what is too large is refused before anything is done.
            change_set.request(Slot(self._keys.slot(0, 10**9), 1 << 62, 1 << 62), self._counter)
        proposal = _Proposal(
            change_set, [op.session.id for op in ops if isinstance(op, Put) and op.session is not None]
        )
        await self._room.acquire()
        self.waiting += 1
        nursery.start_soon(self._make, proposal)
        await proposal.done.wait()
        if proposal.error is not None:
            raise proposal.error
        assert proposal.committed is not None, "it was answered"
        return proposal.committed

    async def _make(self, proposal: "_Proposal") -> None:
        try:
            attempts = self._retry.attempts()
            committed = await self._decide(proposal, attempts)
            # It is made, so if the image cannot follow just now that is no reason to say anything else.
            with trio.move_on_at(attempts.until):
                await self._follower.reached(committed.revision)
            proposal.committed = committed
        except MetadataError as error:
            proposal.error = error
        except trio.Cancelled:
            proposal.error = StoreUnavailable("the metadata store was closed")
            raise
        finally:
            self.waiting -= 1
            self._room.release()
            proposal.done.set()

    async def _decide(self, proposal: "_Proposal", attempts: Attempts) -> Committed:
        change_set = proposal.change_set
        if change_set.only_reads:
            request = change_set.request(None, self._counter)
            answer = change_set.judge(await self._retry.repeat(TXN, request), None, self._counter)
            if isinstance(answer, Conflict):
                raise answer
            assert isinstance(answer, Applied), "it wrote nothing"
            return answer.committed
        async with AsyncExitStack() as stack:
            if change_set.sequential:
                await stack.enter_async_context(self._sequence)
                if self._counter.revision < self._follower.counter.revision:
                    self._counter = self._follower.counter
            await stack.enter_async_context(self._in_flight)
            while True:
                committed = await self._try(proposal, attempts)
                if committed is not None:
                    return committed

    async def _try(self, proposal: "_Proposal", attempts: Attempts) -> Committed | None:
        """Make it through one use of a slot; None if the request is to be made anew."""
        change_set = proposal.change_set
        counter = self._counter
        slot = await self._take_slot(attempts)
        request = change_set.request(slot, counter)
        was_lost = False
        while True:
            try:
                response = await self._rpc.call(TXN, request, seconds_max=attempts.seconds)
            except RpcError as error:
                if error.is_missing_lease:
                    # Refused before it was looked at, so an earlier copy may still have been made.
                    if was_lost:
                        raise StoreUnavailable("unknown whether it was made: a lease ended meanwhile") from error
                    await self._require_sessions(proposal)
                    await self._renew(slot.lease)
                    return None
                was_lost = was_lost or not error.is_refusal
                await attempts.after(error)
                self.repeated += 1
                continue
            answer = change_set.judge(response, slot, counter)
            if isinstance(answer, Applied | AppliedEarlier):
                self._release(slot)
                if isinstance(answer, Applied) and answer.counter is not None:
                    self._counter = answer.counter
                return answer.committed
            if isinstance(answer, SlotLost):
                if was_lost:
                    raise StoreUnavailable("unknown whether it was made: its writer's lease has ended")
                await self._renew(slot.lease)
                return None
            if not was_lost:
                self._free.append(slot)
            elif await self._burn(slot, attempts):
                self._release(slot)
            else:
                # An earlier copy was made after this one was judged; sent once more, it will be told so.
                continue
            if isinstance(answer, CounterMoved):
                self.recounted += 1
                self._counter = answer.counter
                return None
            raise answer

    async def _burn(self, slot: Slot, attempts: Attempts) -> bool:
        """Make sure that no copy of what was sent through the slot can be made any more; False if one was."""
        while True:
            try:
                return is_burnt(await self._rpc.call(TXN, burn(slot), seconds_max=attempts.seconds))
            except RpcError as error:
                await attempts.after(error)

    async def _take_slot(self, attempts: Attempts) -> Slot:
        lease = await self._writer_lease(attempts)
        while self._free:
            slot = self._free.pop()
            if slot.lease == lease:
                return slot
        self._slots_made += 1
        return Slot(self._keys.slot(lease, self._slots_made), lease, 0)

    def _release(self, slot: Slot) -> None:
        self._free.append(slot._replace(uses=slot.uses + 1))

    async def _writer_lease(self, attempts: Attempts) -> int:
        async with self._renewing:
            if self._lease is None or self._lease.ended.is_set():
                self._lease = await self._leases.grant(WRITER_LEASE_SECONDS, attempts)
            return self._lease.id

    async def _renew(self, lease: int) -> None:
        """Have another lease granted before the next slot is taken, if that is still the one in use."""
        async with self._renewing:
            if self._lease is not None and self._lease.id == lease:
                if not await self._leases.has_ended(self._lease):
                    raise StoreUnavailable(f"etcd does not find the lease {lease:x}, which it says is there")
                self._lease = None

    async def _require_sessions(self, proposal: "_Proposal") -> None:
        for session in proposal.sessions:
            lease = self._leases.find(session)
            if lease is None or await self._leases.has_ended(lease):
                raise SessionLost(f"session {session} has ended")


class _Proposal:
    """What somebody asked for, and what he is told."""

    __slots__ = ("change_set", "committed", "done", "error", "sessions")

    def __init__(self, change_set: ChangeSet, sessions: list[int]) -> None:
        self.change_set = change_set
        self.sessions = sessions
        self.done = trio.Event()
        self.committed: Committed | None = None
        self.error: MetadataError | None = None
