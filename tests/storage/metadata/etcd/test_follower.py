"""The follower beside an etcd that answers as the test says."""

from typing import cast

import trio
import trio.testing

from storage.metadata.etcd.follower import Follower
from storage.metadata.etcd.keys import Keys
from storage.metadata.etcd.retry import Retry
from storage.metadata.etcd.rpc import Rpc
from storage.metadata.store import StoreUnavailable


class Refusing:
    """An etcd that refuses every read at once, and counts them."""

    def __init__(self) -> None:
        self.asked = 0

    async def repeat(self, *_request: object) -> None:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        assert self.asked <= 20, "it is asked without a pause"
        raise StoreUnavailable("etcd refuses: permission denied")


async def test_a_refused_listing_is_not_repeated_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """M14: etcd has compacted the next revision, and lets nobody read."""
    etcd = Refusing()
    follower = Follower(cast("Rpc", None), Keys("/t"), cast("Retry", etcd))
    follower._is_compacted = True
    with trio.move_on_after(10):
        await follower.run()
    assert etcd.asked > 1
