from random import Random

import trio

from tests.support.backends import on_trio
from tidewire.client.backoff import Backoff


@on_trio
async def test_waiting_takes_the_delay() -> None:
    backoff = Backoff(Random(3))
    expected = Backoff(Random(3)).next_delay_seconds()
    before = trio.current_time()
    await backoff.wait()
    assert abs(trio.current_time() - before - expected) < 1e-6
