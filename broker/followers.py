"""Tells many followers of one thing that it has changed, in slices that leave the event loop free."""

from collections.abc import Callable, Set
from typing import Final, TypeVar

import trio

FOLLOWERS_AT_ONCE: Final = 256
"""Followers that are told in one step of the event loop, which takes about 3 ms."""

Follower = TypeVar("Follower")


async def tell_all(followers: Set[Follower], tell: Callable[[Follower], None]) -> None:
    """Call `tell` with every follower that is in the live set now. Followers that leave meanwhile are left out.

    A follower that joins meanwhile is not told. It learns the newest state when it joins.
    """
    for number, follower in enumerate(tuple(followers), 1):
        if follower in followers:
            tell(follower)
        if number % FOLLOWERS_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
