"""A free lock of the right name proves a death; nothing else proves anything."""

from errno import EMFILE

import pytest
import trio
from trio.testing import MockClock

from storage.broker_home import LOCK_RETRY_SECONDS, BrokerHome
from storage.dead_or_alive import Liveness, probe
from storage.errors import DataFolderInUse
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import DATA, FOLDER


async def test_only_a_free_lock_of_that_name_proves_the_death() -> None:
    """D1, E4: a running or stopped process holds it; another name is another file; a missing file is unknown."""
    files = SimulatedFiles()
    assert await probe(files, DATA, "x", "any") is Liveness.UNKNOWN
    home = await BrokerHome.enter(files.process(), DATA, FOLDER, "x")
    assert await probe(files, DATA, "x", home.lock_name) is Liveness.UNKNOWN
    home.close()
    assert await probe(files, DATA, "x", "another") is Liveness.UNKNOWN
    assert await probe(files, DATA, "x", None) is Liveness.UNKNOWN
    for _ in range(2):
        assert await probe(files, DATA, "x", home.lock_name) is Liveness.DEAD
    (await BrokerHome.enter(files, DATA, FOLDER, "x")).close()


async def test_a_lock_that_cannot_be_tried_proves_nothing() -> None:
    """E11: the disk has a fault, or this process has no descriptors left. Lookups go on."""
    files = SimulatedFiles()
    home = await BrokerHome.enter(files.process(), DATA, FOLDER, "x")
    home.close()
    files.fail("lock", code=EMFILE)
    assert await probe(files, DATA, "x", home.lock_name) is Liveness.UNKNOWN
    assert await probe(files, DATA, "x", home.lock_name) is Liveness.DEAD


async def test_a_start_outlasts_a_probe(autojump_clock: MockClock) -> None:
    """E4: a lock that is held for a moment refuses no start; one that stays held does, after a bounded time."""
    files = SimulatedFiles()
    prober = await BrokerHome.enter(files.process(), DATA, FOLDER, "x")
    async with trio.open_nursery() as nursery:

        async def release() -> None:
            await trio.sleep(10 * LOCK_RETRY_SECONDS)
            prober.close()

        nursery.start_soon(release)
        home = await BrokerHome.enter(files, DATA, FOLDER, "x", patience_seconds=2)
    began = trio.current_time()
    with pytest.raises(DataFolderInUse):
        await BrokerHome.enter(files.process(), DATA, FOLDER, "x", patience_seconds=2)
    assert 2 <= trio.current_time() - began < 3
    home.close()
