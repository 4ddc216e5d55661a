"""Makes change sets in etcd, each exactly once, however often its request was sent.

One task sends the waiting change sets, as many as may share a transaction (requests.py), and takes the next ones after
the answer. So a lone writer does not wait, and a thousand writers cost a few transactions. A proposal stands even if
its caller is cancelled, as in the other stores. It is answered when this process's image holds it, so the caller finds
its write there.

Every transaction uses a *slot*: a key that counts the transactions made through it, and on which the transaction has a
condition. If an answer is lost, the same transaction is sent again, and only one of its copies is made. If etcd says
that its space is exceeded, the slot tells whether it found that behind the transaction. The outcome is unknown only if
no answer comes in time. That slot is then never used again. Slots are bound to a lease of the process, so they vanish
after it.

Sequential puts take their numbers on the condition that the counter is where this process last saw it. Only other
processes can interfere, and then the transaction is built again.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import trio

from storage.errors import fresh
from storage.metadata.etcd.follower import Follower
from storage.metadata.etcd.generated import etcd_pb2 as pb
from storage.metadata.etcd.keys import Keys
from storage.metadata.etcd.leases import Lease, Leases
from storage.metadata.etcd.requests import (
    REQUEST_BYTES_MAX,
    Answer,
    ChangeSet,
    ChangeSetBatch,
    Counter,
    CounterMoved,
    MadeEarlier,
    Slot,
    SlotLost,
    TakenKey,
    require_size,
)
from storage.metadata.etcd.retry import Attempts, Retry
from storage.metadata.etcd.rpc import RANGE, TXN, Rpc, RpcError
from storage.metadata.store import (
    ChangeSetTooLarge,
    Committed,
    MetadataError,
    Op,
    Put,
    SessionLost,
    StoreFull,
    StoreUnavailable,
)
from storage.signal import Signal

WRITES_WAITING_MAX: Final = 4096
"""Change sets that wait to be sent. Further writers wait until there is room."""

LOOKED_AT_MAX: Final = 256
"""How many waiting change sets are considered for one transaction."""

SMALL_BYTES: Final = REQUEST_BYTES_MAX // 8
"""A change set of this size always fits a request. Each key is in a request three times, behind the root."""

_MAKE_SPACE: Final = "Compact it, defragment it, and disarm its alarm"

WRITER_LEASE_SECONDS: Final = 60
"""How long the slots of a dead process remain."""


class Writer:
    """The change sets of one process."""

    def __init__(self, rpc: Rpc, keys: Keys, retry: Retry, follower: Follower, leases: Leases) -> None:
        self._rpc = rpc
        self._keys = keys
        self._retry = retry
        self._follower = follower
        self._leases = leases
        self._lease: Lease | None = None
        self._slot: Slot | None = None
        self._slots_made = 0
        self._counter = Counter(0, 0)
        self._waiting: deque[_Proposal] = deque()
        self._wake = Signal()
        self._room = trio.Semaphore(WRITES_WAITING_MAX)
        self._closed: MetadataError | None = None
        self.unanswered = 0
        """Change sets that are not answered yet."""
        self.groups = 0
        """Transactions made."""
        self.repeated = 0
        """Transactions sent again."""
        self.recounted = 0
        """Transactions built again because the counter had moved."""

    async def write(self, ops: Sequence[Op], size: int) -> Committed:
        """Make a change set that passed `measure`, which returned `size`. See `MetadataStore.commit`."""
        change_set = ChangeSet(ops, self._keys)
        if size > SMALL_BYTES:
            require_size(change_set)
        if change_set.only_reads:
            return await self._read(change_set)
        await self._room.acquire()
        if self._closed is not None:
            raise fresh(self._closed)
        proposal = _Proposal(change_set, ops, size, trio.current_time() + self._retry.seconds_max)
        self.unanswered += 1
        self._waiting.append(proposal)
        self._wake.set()
        await proposal.done.wait()
        if proposal.error is not None:
            raise fresh(proposal.error)
        assert proposal.committed is not None, "it was answered"
        return await self._seen(proposal.committed, proposal.until)

    async def run(self) -> None:
        """Send the proposals until cancelled."""
        try:
            while True:
                await self._wake.wait()
                while self._waiting:
                    await self._send(self._take())
        finally:
            self.close(StoreUnavailable("the metadata store was closed"))

    def close(self, error: MetadataError) -> None:
        """Answer everything that waits with `error`, and accept nothing more."""
        self._closed = error
        while self._waiting:
            self._answer(self._waiting.popleft(), error)

    async def _read(self, change_set: ChangeSet) -> Committed:
        """A change set with conditions only: a read of etcd that writes nothing."""
        until = trio.current_time() + self._retry.seconds_max
        request = change_set.transaction(0, None)[0]
        # When the answer comes, the image may be newer than the state that the conditions were checked against.
        request.success.append(pb.RequestOp(request_range=pb.RangeRequest(key=self._keys.tip, keys_only=True)))
        answer = await self._retry.repeat(TXN, request)
        tips = answer.responses[0].response_range.kvs if answer.succeeded else ()
        outcome = change_set.outcome(answer, tips[0].mod_revision if tips else 0, 0)
        if not isinstance(outcome, Committed):
            assert not isinstance(outcome, TakenKey), "it makes no keys"
            raise outcome
        return await self._seen(outcome, until)

    async def _seen(self, committed: Committed, until: float) -> Committed:
        """The result, once the image holds the state of that moment, with etcd's revision if it changed records.

        It was made. So if the image cannot follow until then, the answer is the same.
        """
        with trio.move_on_at(until) as waiting:
            await self._follower.reached(committed.revision)
        if waiting.cancelled_caught or self._follower.image.revision >= committed.revision:
            return committed
        return replace(committed, revision=self._follower.image.revision)

    def _take(self) -> "list[_Proposal]":
        """The proposals that go next: the first one, and the later ones that may share its transaction.

        The others wait at the head of the queue. They are concurrent, so being overtaken changes nothing for them.
        """
        group = ChangeSetBatch(self._keys)
        taken: list[_Proposal] = []
        left: list[_Proposal] = []
        for _ in range(min(len(self._waiting), LOOKED_AT_MAX)):
            proposal = self._waiting.popleft()
            (taken if group.add(proposal.change_set, proposal.size) else left).append(proposal)
        self._put_back(left)
        return taken

    async def _send(self, proposals: "list[_Proposal]") -> None:
        """Have each of them answered, or put back to be sent again."""
        answered = False
        try:
            await self._make(proposals)
            answered = True
        except StoreUnavailable as error:
            kind = StoreFull if isinstance(error, StoreFull) else StoreUnavailable
            for proposal in proposals:
                self._answer(proposal, kind(str(error)))
            answered = True
        except ChangeSetTooLarge as error:
            # Each was small enough alone, so none is at fault, and none was made.
            for proposal in proposals:
                self._answer(proposal, ChangeSetTooLarge(str(error)))
            answered = True
        finally:
            if not answered:
                for proposal in proposals:
                    self._answer(proposal, StoreUnavailable("the metadata store was closed"))

    async def _make(self, proposals: "list[_Proposal]") -> None:
        if self._counter.revision < self._follower.counter.revision:
            self._counter = self._follower.counter
        group = ChangeSetBatch(self._keys)
        for proposal in proposals:
            group.add(proposal.change_set, proposal.size)
        attempts = self._retry.attempts(until=min(proposal.until for proposal in proposals))
        while True:
            slot, counter = await self._take_slot(attempts), self._counter
            try:
                answer = await self._ask(group, slot, counter, attempts)
            except RpcError as refusal:
                await self._sort_out(refusal, proposals, slot)
                return
            if isinstance(answer, SlotLost):
                self._slot = None
                continue
            if isinstance(answer, CounterMoved):
                self.recounted += 1
                self._counter = answer.counter
                continue
            self.groups += 1
            self._slot = slot._replace(uses=slot.uses + 1)
            self._counter = answer.counter
            again: list[_Proposal] = []
            for proposal, outcome in zip(proposals, answer.outcomes, strict=True):
                if outcome is None or isinstance(outcome, TakenKey):
                    again.append(proposal)
                else:
                    self._answer(proposal, outcome)
            self._put_back(again)
            return

    async def _ask(self, group: ChangeSetBatch, slot: Slot, counter: Counter, attempts: Attempts) -> Answer:
        """The transaction's answer, from any of its copies.

        Raises:
            RpcError: the server refused it, and nothing of it was made.
            StoreFull: etcd has no space, and nothing of it was made.
            StoreUnavailable: no answer came in time, or the answer does not tell what was made.
        """
        request = group.request(slot, counter)
        was_lost = False
        while True:
            try:
                response = await self._rpc.call(TXN, request, seconds_max=attempts.seconds)
            except RpcError as error:
                if error.is_refusal and not error.is_full and not was_lost:
                    raise
                if error.is_full:
                    earlier = await self._found_beyond_the_quota(group, slot, counter)
                    if earlier is not None:
                        return earlier
                    if not was_lost:
                        raise StoreFull(f"etcd has no space: {error}. {_MAKE_SPACE}") from error
                was_lost = True
                # A failure here leaves a slot with an unknown number of uses.
                self._slot = None
                await attempts.after(error)
                self.repeated += 1
                continue
            answer = group.judge(response, slot, counter)
            if isinstance(answer, SlotLost) and was_lost:
                raise StoreUnavailable("unknown whether it was made: its writer's lease has ended")
            self._slot = slot
            return answer

    async def _found_beyond_the_quota(self, group: ChangeSetBatch, slot: Slot, counter: Counter) -> MadeEarlier | None:
        """Whether etcd made the transaction for which it says that it has no space; None if it did not.

        It refuses most of them before it makes them, but finds out about some only behind them. A full etcd answers
        reads.
        """
        self._slot = None
        answer = group.judge_unmade(await self._retry.repeat(RANGE, slot.uses_request()), slot, counter)
        if isinstance(answer, SlotLost):
            raise StoreUnavailable("unknown whether it was made: etcd has no space, and its writer's lease has ended")
        self._slot = slot
        return answer

    async def _sort_out(self, refusal: RpcError, proposals: "list[_Proposal]", slot: Slot) -> None:
        """Nothing was made. Answer the change sets at fault, and put the others back."""
        if refusal.is_missing_lease:
            blameless: list[_Proposal] = []
            for proposal in proposals:
                lost = await self._lost_session(proposal)
                if lost is None:
                    blameless.append(proposal)
                else:
                    self._answer(proposal, SessionLost(f"session {lost} has ended"))
            if len(blameless) == len(proposals):
                if self._lease is not None and not await self._leases.has_ended(self._lease):
                    raise StoreUnavailable(
                        f"etcd does not find the lease {slot.lease:x}, although it reports the lease as alive"
                    )
                self._slot = None
            self._put_back(blameless)
        elif len(proposals) > 1:
            # One of them may be at fault, or all. Alone, each gets its own answer.
            for proposal in proposals:
                await self._send([proposal])
        else:
            raise StoreUnavailable(f"etcd refuses: {refusal}") from refusal

    async def _lost_session(self, proposal: "_Proposal") -> int | None:
        for session in proposal.sessions:
            lease = self._leases.find(session)
            if lease is None or await self._leases.has_ended(lease):
                return session
        return None

    async def _take_slot(self, attempts: Attempts) -> Slot:
        if self._lease is None or self._lease.ended.is_set():
            self._lease = await self._leases.grant(WRITER_LEASE_SECONDS, attempts)
            self._slot = None
        if self._slot is None:
            self._slots_made += 1
            self._slot = Slot(self._keys.slot(self._lease.id, self._slots_made), self._lease.id, 0)
        return self._slot

    def _put_back(self, proposals: "list[_Proposal]") -> None:
        self._waiting.extendleft(reversed(proposals))

    def _answer(self, proposal: "_Proposal", outcome: Committed | MetadataError) -> None:
        if proposal.done.is_set():
            return
        if isinstance(outcome, Committed):
            proposal.committed = outcome
        else:
            proposal.error = outcome
        self.unanswered -= 1
        self._room.release()
        proposal.done.set()


class _Proposal:
    """A request of a caller, and its answer."""

    __slots__ = ("change_set", "committed", "done", "error", "sessions", "size", "until")

    def __init__(self, change_set: ChangeSet, ops: Sequence[Op], size: int, until: float) -> None:
        self.change_set = change_set
        self.sessions = [op.session.id for op in ops if isinstance(op, Put) and op.session is not None]
        self.size = size
        self.until = until
        self.done = trio.Event()
        self.committed: Committed | None = None
        self.error: MetadataError | None = None
