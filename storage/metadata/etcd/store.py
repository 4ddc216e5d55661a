"""The metadata store on etcd, for clusters that already run one (version 3.4 or newer).

    async with EtcdStore.open(["10.0.0.1:2379", "10.0.0.2:2379"], root="/tidewire/main") as store:
        ...

Every process holds the image of all records (docs/design.md#metadata), which one watch keeps current (follower.py). A
change set is part of one etcd transaction (requests.py, writer.py). Change sets that share a transaction share its
revision. A read first asks etcd how far the image has to be, with one request for all concurrent reads. The image then
answers. So reads are linearizable, see one revision, and need neither paging nor index keys in etcd. `peek` looks at
the image as it is.

While etcd cannot be reached, calls wait for it, up to ANSWER_SECONDS_MAX (retry.py). Watches continue where they were.
Sessions last for their timeout and are then lost. Two rules are conventions, because etcd cannot enforce them: only
this module's processes may write below the root, and nobody may restore etcd to an older state under running brokers.
If that happens, the store ends.

Left out: TLS and authentication of etcd's clients, and change sets beyond etcd's limits: 124 operations, 123 conditions
and 1.5 MiB (OPERATIONS_MAX, REQUEST_BYTES_MAX in requests.py). A session's timeout is rounded up to whole seconds, and
etcd makes it 2 at least.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import ceil
from typing import Final, Self

import structlog
import trio

from storage.errors import fresh
from storage.metadata.delta import measure
from storage.metadata.etcd.follower import Follower, StoreRolledBack
from storage.metadata.etcd.generated import etcd_pb2 as pb
from storage.metadata.etcd.keys import FORMAT, Keys
from storage.metadata.etcd.leases import Lease, Leases
from storage.metadata.etcd.retry import ANSWER_SECONDS_MAX, Retry
from storage.metadata.etcd.rpc import TXN, Rpc
from storage.metadata.etcd.writer import Writer
from storage.metadata.store import (
    Committed,
    Fresh,
    IndexHit,
    InvalidOperation,
    KeyWatch,
    MetadataError,
    MetadataStore,
    Op,
    Put,
    RangeWatch,
    Record,
    Session,
    SessionLost,
    StoreEnded,
    StoreStatistics,
    StoreUnavailable,
)
from storage.signal import Signal

CONNECT_SECONDS_MAX: Final = 60.0
"""How long `open` tries to reach etcd."""

CLOSE_SECONDS_MAX: Final = 2.0
"""How long closing may take to end the leases. The rest end by themselves."""

SILENCE_SECONDS: Final = 2.0
"""How long without an answer until `open` logs that it is still trying."""

log = structlog.get_logger(__name__)


class UnknownFormat(MetadataError):
    """The data below the root is from a later release, or from another program."""


class EtcdStore(MetadataStore):
    """See the module's docstring. Made by `open`."""

    def __init__(self, rpc: Rpc, keys: Keys) -> None:
        self._rpc = rpc
        self._keys = keys
        self._nursery: trio.Nursery
        self._retry = Retry(rpc)
        self._follower = Follower(rpc, keys, self._retry)
        self._leases = Leases(rpc, self._retry)
        self._writer = Writer(rpc, keys, self._retry, self._follower, self._leases)
        self._sessions: dict[int, EtcdSession] = {}
        self._barrier = _Barrier()
        self._barrier_asked = Signal()
        self._barriers = 0
        self._failure: BaseException | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls, endpoints: Sequence[str], *, root: str, connect_seconds_max: float = CONNECT_SECONDS_MAX
    ) -> AsyncIterator[Self]:
        """The store below `root` on the etcd cluster with these servers, HOST:PORT each, while the context is open.

        Sessions of earlier processes may still be open. Leaving the context ends the sessions of this one. Exceptions
        of the body come out in an exception group, as from any nursery.

        Raises:
            StoreUnavailable: no server answered within `connect_seconds_max`.
            UnknownFormat: the data below the root cannot be read.
        """
        rpc = Rpc(endpoints)
        try:
            store = cls(rpc, Keys(root))
            await store._connect(connect_seconds_max)
            async with trio.open_nursery() as nursery:
                store._start(nursery)
                try:
                    yield store
                finally:
                    store._end(_closed())
                    with trio.move_on_after(CLOSE_SECONDS_MAX, shield=True):
                        await store._leases.revoke_all()
                    nursery.cancel_scope.cancel()
        finally:
            rpc.close()

    # ----------------------------------------------------------------------------------------------------- the contract

    def peek(self, key: str) -> Record | None:
        """See `MetadataStore.peek`. One dict lookup. It lags etcd by what the watch has not delivered yet."""
        record: Record | None = self._follower.image.records.get(key)
        return record

    async def fresh(self, keys: Collection[str]) -> Fresh:
        """See `MetadataStore.fresh`. Concurrent calls share one request."""
        await self.barrier()
        image = self._follower.image
        return Fresh(image.revision, {key: image.records.get(key) for key in keys})

    async def get(self, key: str) -> Record | None:
        """See `MetadataStore.get`."""
        await self.barrier()
        return self.peek(key)

    async def scan(self, start: str, end: str, *, limit: int | None = None) -> list[Record]:
        """See `MetadataStore.scan`; as new as `get`."""
        await self.barrier()
        return self._follower.image.scan(start, end, limit)

    async def query(
        self, index: str, start: str, end: str, *, limit: int | None = None, after: str = ""
    ) -> list[IndexHit]:
        """See `MetadataStore.query`; as new as `get`."""
        await self.barrier()
        return self._follower.image.query(index, start, end, limit, after)

    async def barrier(self) -> int:
        """See `MetadataStore.barrier`.

        It sends one request to etcd, begun after the call, and shares it with the calls that came before the request
        was sent.

        Raises:
            StoreUnavailable: etcd does not answer, or the image does not follow.
        """
        self._raise_failure()
        barrier = self._barrier
        self._barrier_asked.set()
        await barrier.passed.wait()
        if barrier.error is not None:
            raise fresh(barrier.error)
        return barrier.revision

    async def commit(self, ops: Sequence[Op]) -> Committed:
        """See `MetadataStore.commit`. On return, this process's image holds it too, unless the watch is broken."""
        ops = tuple(ops)
        size = measure(ops)
        self._raise_failure()
        for op in ops:
            if isinstance(op, Put) and op.session is not None:
                session = self._sessions.get(op.session.id)
                if session is not op.session or session.has_ended:
                    raise SessionLost(f"{op.key}: session {op.session.id} has ended")
        return await self._writer.write(ops, size)

    def watch_key(self, key: str) -> AbstractAsyncContextManager[KeyWatch]:
        """See `MetadataStore.watch_key`."""
        return self._follower.watches.of_key(key)

    def watch_range(self, start: str, end: str) -> AbstractAsyncContextManager[RangeWatch]:
        """See `MetadataStore.watch_range`.

        It begins with the image as it is. What the image lacks follows as changes.
        """
        return self._follower.watches.of_range(start, end)

    async def open_session(self, timeout_seconds: float) -> Session:
        """See `MetadataStore.open_session`. The store keeps it alive.

        Raises:
            InvalidOperation: the timeout is not positive.
            StoreUnavailable: etcd does not answer. A session that it may have opened ends by itself.
        """
        if not timeout_seconds > 0:
            raise InvalidOperation(f"a session timeout of {timeout_seconds} seconds")
        self._raise_failure()
        lease = await self._leases.grant(ceil(timeout_seconds), self._retry.attempts())
        try:
            key = self._keys.session(lease.id)
            # Putting it twice has the same effect as once, so it may be repeated.
            request = pb.TxnRequest(success=[_put(key, b"", lease.id), _put(self._keys.tip, b"")])
            answer = await self._retry.repeat(TXN, request)
            await self._follower.reached(answer.header.revision)
            self._raise_failure()
        except BaseException:
            # Nobody has the session, so its lease must not be renewed.
            self._leases.gone(lease)
            raise
        session = self._sessions[lease.id] = EtcdSession(self, lease)
        self._nursery.start_soon(self._notice_end, session)
        return session

    def statistics(self) -> StoreStatistics:
        """See `MetadataStore.statistics`; `extra` says what the connection did."""
        follower, writer, rpc = self._follower, self._writer, self._rpc.statistics
        return StoreStatistics(
            follower.image.revision,
            len(follower.image.records),
            len(follower.watches),
            writer.unanswered,
            {
                "calls": rpc.calls,
                "calls_failed": rpc.failures,
                "barriers": self._barriers,
                "watch_resumed": follower.resumed,
                "listed": follower.listed,
                "groups": writer.groups,
                "writes_repeated": writer.repeated,
                "sequences_recounted": writer.recounted,
            },
        )

    # ------------------------------------------------------------------------------------------------------------ tasks

    async def _connect(self, seconds_max: float) -> None:
        """Reach etcd and fill the image."""
        self._retry.seconds_max = seconds_max
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._say_if_silent, seconds_max)
            try:
                await self._require_format()
                await self._follower.start()
            except (StoreUnavailable, UnknownFormat) as error:
                failure = error
            nursery.cancel_scope.cancel()
        # Raised out here, so that it is not in an exception group.
        if failure is not None:
            raise failure
        self._retry.seconds_max = ANSWER_SECONDS_MAX

    def _start(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        nursery.start_soon(self._follow)
        nursery.start_soon(self._leases.run)
        nursery.start_soon(self._writer.run)
        nursery.start_soon(self._answer_barriers)

    async def _say_if_silent(self, seconds_max: float) -> None:
        await trio.sleep(SILENCE_SECONDS)
        log.warning("etcd does not answer yet", servers=list(self._rpc.endpoints), trying_for_seconds=seconds_max)

    async def _require_format(self) -> None:
        key = self._keys.format
        request = pb.TxnRequest(
            compare=[pb.Compare(key=key, target=pb.Compare.VERSION, result=pb.Compare.EQUAL, version=0)],
            success=[_put(key, FORMAT)],
            failure=[pb.RequestOp(request_range=pb.RangeRequest(key=key))],
        )
        answer = await self._retry.repeat(TXN, request)
        found = FORMAT if answer.succeeded else answer.responses[0].response_range.kvs[0].value
        if found != FORMAT:
            raise UnknownFormat(f"{key.decode()} in etcd names the format {found.decode(errors='replace')!r}")

    async def _follow(self) -> None:
        try:
            await self._follower.run()
        except StoreRolledBack as error:
            log.error("the metadata store ends", reason=str(error))
            self._end(error)

    async def _answer_barriers(self) -> None:
        while True:
            await self._barrier_asked.wait()
            barrier, self._barrier = self._barrier, _Barrier()
            self._barriers += 1
            try:
                with trio.fail_after(self._retry.seconds_max):
                    barrier.revision = await self._pass_barrier()
                barrier.error = None
            except trio.TooSlowError:
                barrier.error = StoreUnavailable(f"the watch on etcd delivered nothing for {ANSWER_SECONDS_MAX:g} s")
            except StoreUnavailable as error:
                barrier.error = error
            except StoreRolledBack as error:
                self._end(error)
                barrier.error = self._unavailable()
            finally:
                barrier.passed.set()

    async def _pass_barrier(self) -> int:
        follower = self._follower
        known = follower.followed_until
        sessions = self._keys.sessions
        request = pb.TxnRequest(
            success=[
                pb.RequestOp(request_range=pb.RangeRequest(key=self._keys.tip, keys_only=True)),
                pb.RequestOp(request_range=pb.RangeRequest(key=sessions.start, range_end=sessions.end, keys_only=True)),
            ]
        )
        answer = await self._retry.repeat(TXN, request)
        follower.require_no_older(answer.header, known)
        tips, opened = (response.response_range.kvs for response in answer.responses)
        if tips:
            await follower.reached(tips[0].mod_revision)
        # The end of a session is no change set and moves no tip. It shows because its key is missing.
        alive = {self._keys.lease_of(found.key) for found in opened}
        for lease in [lease for lease in follower.sessions_until(answer.header.revision) if lease not in alive]:
            await follower.session_gone(lease)
        return follower.image.revision

    async def _notice_end(self, session: "EtcdSession") -> None:
        await self._follower.session_gone(session.id)
        self._leases.gone(session.lease)
        self._sessions.pop(session.id, None)

    # ---------------------------------------------------------------------------------------------------------- the end

    async def end_session(self, session_id: int) -> None:
        """See `MetadataStore.end_session`. A session is a lease."""
        self._raise_failure()
        session = self._sessions.get(session_id)
        if session is not None:
            await session.close()
            return
        await self._leases.revoke_of_another(session_id)
        await self._follower.session_gone(session_id)

    async def close_session(self, lease: Lease) -> None:
        """End a session of this process and delete its records; see `Session.close`."""
        if self._failure is not None and lease.ended.is_set():
            return
        await self._leases.revoke(lease)
        await self._follower.session_gone(lease.id)

    def _end(self, cause: BaseException) -> None:
        """Answer nothing from now on. `cause` says why."""
        if self._failure is None:
            self._failure = cause
        self._follower.watches.fail(self._unavailable())
        self._writer.close(self._unavailable())
        self._barrier.error = self._unavailable()
        self._barrier.passed.set()
        for session in self._sessions.values():
            session.lease.ended.set()

    def _unavailable(self) -> StoreEnded:
        assert self._failure is not None, "it has ended"
        return StoreEnded(self._failure)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._unavailable()


class EtcdSession(Session):
    """A session that is a lease in etcd, with a key that shows it is open."""

    def __init__(self, store: EtcdStore, lease: Lease) -> None:
        self._store = store
        self.lease = lease

    @property
    def id(self) -> int:
        """See `Session.id`. It is the lease's id."""
        return self.lease.id

    @property
    def has_ended(self) -> bool:
        """See `Session.has_ended`."""
        return self.lease.ended.is_set()

    async def close(self) -> None:
        """See `Session.close`.

        Raises:
            StoreUnavailable: etcd does not answer. The session ends after its timeout.
        """
        await self._store.close_session(self.lease)

    async def wait_lost(self) -> None:
        """See `Session.wait_lost`.

        Also returns when its timeout has passed since this process last heard from etcd. It is then unknown whether
        etcd has ended it, so its owner must act as if it had. Also returns when the store itself has ended.
        """
        await self.lease.ended.wait()


class _Barrier:
    """Shared by all callers that wait for the same request to etcd."""

    __slots__ = ("error", "passed", "revision")

    def __init__(self) -> None:
        self.passed = trio.Event()
        self.revision = 0
        # Until there is an answer. If the store is closed before, or by a defect, shielded callers get this.
        self.error: StoreUnavailable | None = StoreEnded(_closed())


def _closed() -> trio.ClosedResourceError:
    return trio.ClosedResourceError("it was closed")


def _put(key: bytes, value: bytes, lease: int = 0) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))
