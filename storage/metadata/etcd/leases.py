"""Leases: granted, kept alive by one task, and noticed when they end.

A lease is renewed when a third of its time is over. It counts as ended as soon as etcd says so. It also counts as ended
when its whole time has passed since the last answered renewal was sent. etcd may end it from that moment on. Its holder
must then release everything, whether or not etcd can be reached (M18).
"""

from typing import Final

import structlog
import trio

from storage.metadata.etcd.generated import etcd_pb2 as pb
from storage.metadata.etcd.retry import Attempts, Retry
from storage.metadata.etcd.rpc import LEASE_GRANT, LEASE_REVOKE, LEASE_TIME_TO_LIVE, Rpc, RpcError
from storage.signal import Signal

RENEWED_PER_LIFE: Final = 3
"""How often a lease is renewed in its lifetime."""

RENEWAL_RETRY_SECONDS: Final = 0.5
"""How long after a failed renewal it is tried again."""

log = structlog.get_logger(__name__)


class Lease:
    """One lease of this process."""

    def __init__(self, lease_id: int, seconds: int, granted: float) -> None:
        self.id = lease_id
        self.seconds = seconds
        """How long after the last renewal etcd ends it."""
        self.ends = granted + seconds
        """When it has ended unless it is renewed before, on Trio's clock."""
        self.due = granted + seconds / RENEWED_PER_LIFE
        """When to renew it next."""
        self.ended = trio.Event()


class Leases:
    """All leases of one process."""

    def __init__(self, rpc: Rpc, retry: Retry) -> None:
        self._rpc = rpc
        self._retry = retry
        self._leases: dict[int, Lease] = {}
        self._changed = Signal()

    def gone(self, lease: Lease) -> None:
        """Let the lease go: etcd has ended it, or ends it by itself because nobody renews it."""
        self._end(lease)

    def find(self, lease_id: int) -> Lease | None:
        """The lease, unless it is known to have ended."""
        return self._leases.get(lease_id)

    async def grant(self, seconds: int, attempts: Attempts) -> Lease:
        """A new lease; etcd may make it longer. A lease whose answer was lost ends by itself.

        Raises:
            StoreUnavailable: etcd does not answer.
        """
        while True:
            asked = trio.current_time()
            try:
                answer = await self._rpc.call(
                    LEASE_GRANT, pb.LeaseGrantRequest(TTL=seconds), seconds_max=attempts.seconds
                )
            except RpcError as error:
                await attempts.after(error)
                continue
            lease = self._leases[answer.ID] = Lease(answer.ID, answer.TTL, asked)
            self._changed.set()
            return lease

    async def revoke(self, lease: Lease) -> None:
        """End it now, with everything bound to it. No error if it has ended.

        Raises:
            StoreUnavailable: etcd does not answer. The lease ends by itself.
        """
        self._end(lease)
        await self.revoke_of_another(lease.id)

    async def revoke_of_another(self, lease_id: int) -> None:
        """End the lease of another process now, with everything bound to it. No error if it has ended.

        Raises:
            StoreUnavailable: etcd does not answer.
        """
        attempts = self._retry.attempts()
        while True:
            try:
                await self._rpc.call(LEASE_REVOKE, pb.LeaseRevokeRequest(ID=lease_id), seconds_max=attempts.seconds)
            except RpcError as error:
                if error.is_missing_lease:
                    return
                await attempts.after(error)
                continue
            return

    async def revoke_all(self) -> None:
        """End every lease; see `revoke`."""
        async with trio.open_nursery() as nursery:
            for lease in tuple(self._leases.values()):
                nursery.start_soon(self._revoke_if_possible, lease)

    async def has_ended(self, lease: Lease) -> bool:
        """Whether etcd no longer knows it.

        Raises:
            StoreUnavailable: etcd does not answer.
        """
        if not lease.ended.is_set():
            answer = await self._retry.repeat(LEASE_TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=lease.id))
            if answer.TTL <= 0:
                self._end(lease)
        return lease.ended.is_set()

    async def run(self) -> None:
        """Keep the leases alive until cancelled."""
        while True:
            now = trio.current_time()
            for lease in tuple(self._leases.values()):
                if now >= lease.ends:
                    log.warning("a lease was not renewed in time", lease=lease.id, seconds=lease.seconds)
                    self._end(lease)
            due = [lease for lease in self._leases.values() if lease.due <= now]
            if due:
                await self._renew(due)
                continue
            with trio.move_on_at(min((lease.due for lease in self._leases.values()), default=float("inf"))):
                await self._changed.wait()

    async def _renew(self, due: list[Lease]) -> None:
        sent = trio.current_time()
        # At most until the first of them ends, so that the end is noticed. Shorter if there are other servers, so that
        # one of them has its turn.
        share = 1 if len(self._rpc.endpoints) == 1 else RENEWED_PER_LIFE
        patience = max(0.001, min(min(lease.ends - sent, lease.seconds / share) for lease in due))
        try:
            seconds_left = await self._rpc.keep_alive([lease.id for lease in due], seconds_max=patience)
        except RpcError as error:
            log.info("leases were not renewed", reason=str(error), again_in_seconds=RENEWAL_RETRY_SECONDS)
            self._rpc.turn(error.server)
            for lease in due:
                lease.due = min(trio.current_time() + RENEWAL_RETRY_SECONDS, lease.ends)
            return
        for lease in due:
            if seconds_left.get(lease.id, 0) <= 0:
                self._end(lease)
            else:
                lease.ends = sent + lease.seconds
                lease.due = sent + lease.seconds / RENEWED_PER_LIFE

    async def _revoke_if_possible(self, lease: Lease) -> None:
        try:
            await self._rpc.call(LEASE_REVOKE, pb.LeaseRevokeRequest(ID=lease.id), seconds_max=self._retry.seconds_max)
        except RpcError as error:
            log.info("a lease is left to end by itself", lease=lease.id, reason=str(error))

    def _end(self, lease: Lease) -> None:
        self._leases.pop(lease.id, None)
        lease.ended.set()
