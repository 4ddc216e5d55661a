"""The controller is killed, or stopped and woken, at each step of its disk, while all brokers write."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from storage.metadata.cluster.roles import Role
from storage.metadata.cluster.shared_store import SharedStore
from storage.metadata.store import Put, PutSequential, StoreUnavailable, starting_with
from tests.support.shared_stores import TIMEOUT, brokers

NAMES = ("b1", "b2", "b3")
WRITES = 6


async def _write(store: SharedStore, name: str, acked: dict[bytes, str], unknown: set[bytes]) -> None:
    for number in range(WRITES):
        value = f"{name}-{number}".encode()
        try:
            made = await store.commit([PutSequential("/w", value, "p")])
        except StoreUnavailable:
            unknown.add(value)
        else:
            (key,) = made.keys
            assert key is not None
            acked[value] = key


@pytest.mark.parametrize("step", range(1, 26, 2))
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
async def test_no_write_is_lost_or_made_twice(step: int, is_killed: bool, autojump_clock: MockClock) -> None:
    """R28, M22, C5, C12: every acknowledged write is there once, and the sessions of the others live."""
    async with brokers(seed=step) as them:
        stores = {name: await them.start(name) for name in NAMES}
        session = await stores["b2"].open_session(TIMEOUT)
        await stores["b2"].commit([Put("/e", b"", session=session)])
        acked: dict[bytes, str] = {}
        unknown: set[bytes] = set()
        reached = trio.Event()
        left = step

        def count(_operation: str, _path: Path) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                them.files["b1"].stop()
                reached.set()

        them.files["b1"].before = count
        async with trio.open_nursery() as nursery:
            for name, store in stores.items():
                nursery.start_soon(_write, store, name, acked, unknown)
            await reached.wait()
            if is_killed:
                await them.kill("b1")
            await them.controller("b2", "b3")
            await stores["b3"].put("/after", b"")
            them.files["b1"].resume()
            them.mend("b1")
        await them.until("b1", Role.FOLLOWING, Role.LEADING)
        found = await stores["b3"].scan(*starting_with("/w"))
        values = [record.value for record in found]
        assert len(values) == len(set(values))
        assert {record.value: record.key for record in found if record.value in acked} == acked
        assert set(values) <= acked.keys() | unknown
        assert not {value for value in unknown if not value.startswith(b"b1")}
        await trio.sleep(2 * TIMEOUT)
        assert not session.has_ended
        assert await stores["b1"].get("/e") is not None
        assert await stores["b1"].scan(*starting_with("/w")) == found
