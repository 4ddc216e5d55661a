"""Leases beside an etcd that answers slowly."""

from collections.abc import Sequence
from typing import cast

import trio
from trio.testing import MockClock

from storage.metadata.etcd.generated import etcd_pb2 as pb
from storage.metadata.etcd.leases import RENEWED_PER_LIFE, Leases
from storage.metadata.etcd.retry import Retry
from storage.metadata.etcd.rpc import Rpc

SECONDS = 9
ANSWER_SECONDS = 2.0


class SlowEtcd:
    """Does at once what it is asked, and answers later."""

    endpoints = ("one",)

    async def call(self, *_request: object, seconds_max: float) -> pb.LeaseGrantResponse:
        await trio.sleep(ANSWER_SECONDS)
        return pb.LeaseGrantResponse(ID=1, TTL=SECONDS)

    async def keep_alive(self, leases: Sequence[int], *, seconds_max: float) -> dict[int, int]:
        await trio.sleep(ANSWER_SECONDS)
        return dict.fromkeys(leases, SECONDS)


async def test_a_lease_counts_from_the_question_and_not_from_the_answer(autojump_clock: MockClock) -> None:
    """M18: etcd may have done it then. A holder that counts from the answer holds what another one has."""
    rpc = cast("Rpc", SlowEtcd())
    leases, asked = Leases(rpc, Retry(rpc)), trio.current_time()
    lease = await leases.grant(SECONDS, Retry(rpc).attempts())
    assert lease.ends == asked + SECONDS
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leases.run)
        for _ in range(2):
            asked += SECONDS / RENEWED_PER_LIFE
            assert lease.due == asked
            await trio.sleep_until(asked + ANSWER_SECONDS + 0.5)
            assert lease.ends == asked + SECONDS
        nursery.cancel_scope.cancel()
