"""Who is gone: a missing registration, together with a free lock or a grace."""

from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock

from broker.cluster.absences import Absences
from broker.cluster.membership import BROKERS, Membership
from storage.broker_home import BrokerHome
from storage.errors import WriterAlive
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Session
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import DATA, FOLDER

GRACE = 5.0
WRITER = Writer(FOLDER, "one", 1, 2)


class Looking:
    """Broker two looks at broker one, which holds its lock."""

    def __init__(self, metadata: MemoryStore, files: SimulatedFiles, home: BrokerHome) -> None:
        self.metadata = metadata
        self.files = files
        self.membership = Membership(
            metadata,
            broker_id="two",
            folder_id=FOLDER,
            lock_name=home.lock_name,
            service_url="pulsar://two",
            http_url="http://one",
            release="test",
        )
        self.absences = Absences(metadata, self.membership, home, grace_seconds=GRACE)
        self.lock: str | None = None

    async def register(self) -> Session:
        session = await self.metadata.open_session(10)
        await self.membership.register(session, timeout_seconds=10)
        return session

    async def is_gone(self) -> bool:
        with suppress(WriterAlive):
            absent = await self.absences.require_gone(WRITER, self.lock)
            assert absent.condition is not None
            await self.metadata.commit([absent.condition])
            assert absent.session is self.membership.session
            return True
        return False


@pytest.fixture
async def one(looking: Looking) -> BrokerHome:
    home = await BrokerHome.enter(looking.files.process(), DATA, FOLDER, "one")
    looking.lock = home.lock_name
    return home


@pytest.fixture
async def looking() -> Looking:
    files = SimulatedFiles()
    made = Looking(MemoryStore(), files, await BrokerHome.enter(files, DATA, FOLDER, "two"))
    await made.register()
    return made


async def registered_as(looking: Looking, folder: str) -> Session:
    session = await looking.metadata.open_session(10)
    other = Membership(
        looking.metadata,
        broker_id="one",
        folder_id=folder,
        lock_name="l",
        service_url="pulsar://one",
        http_url="http://one",
        release="test",
    )
    await other.register(session, timeout_seconds=10)
    return session


async def test_a_broker_is_gone_after_a_grace(looking: Looking, one: BrokerHome, autojump_clock: MockClock) -> None:
    """C12: a held lock proves nothing, and a registration ends every doubt and every grace."""
    session = await registered_as(looking, FOLDER)
    assert not await looking.is_gone()
    await trio.sleep(2 * GRACE)
    assert not await looking.is_gone()
    await session.close()
    assert not await looking.is_gone()
    await trio.sleep(GRACE / 2)
    assert not await looking.is_gone()
    session = await registered_as(looking, FOLDER)
    assert not await looking.is_gone()
    await session.close()
    assert not await looking.is_gone()
    await trio.sleep(GRACE)
    assert await looking.is_gone()
    one.close()


async def test_a_free_lock_proves_the_death(looking: Looking, one: BrokerHome) -> None:
    """D1: nobody waits. Only the lock of that name counts, not that of a copied folder or of another boot."""
    one.close()
    assert await looking.is_gone()
    assert await looking.is_gone(), "the lock was released"
    looking.lock = "another"
    assert not await looking.is_gone()
    looking.lock = None
    assert not await looking.is_gone()


async def test_another_folders_broker_of_this_id_is_another(looking: Looking, one: BrokerHome) -> None:
    """E4: its registration says nothing of this folder's journal."""
    one.close()
    await registered_as(looking, "another")
    assert await looking.is_gone()


async def test_the_grace_begins_again_with_a_session(
    looking: Looking, one: BrokerHome, autojump_clock: MockClock
) -> None:
    """C12: after an outage of the store nobody is registered, and whoever returns first fences nobody."""
    assert not await looking.is_gone()
    await trio.sleep(100 * GRACE)
    await looking.register()
    assert not await looking.is_gone()
    await trio.sleep(GRACE)
    assert await looking.is_gone()
    assert await looking.metadata.get(BROKERS + "one") is None
    assert ABSENT == 0
    one.close()


async def test_the_grace_begins_again_with_another_absence(
    looking: Looking, one: BrokerHome, autojump_clock: MockClock
) -> None:
    """C12: a broker that was back meanwhile gets the whole grace, although nobody asked while it was there."""
    assert not await looking.is_gone()
    await trio.sleep(100)
    assert not await looking.is_gone()
    await trio.sleep(GRACE)
    assert await looking.is_gone()


async def test_a_killed_broker_takes_no_clients_before_its_session_ends(looking: Looking, one: BrokerHome) -> None:
    """C21: its free lock shows that. Its registration says the name of the lock."""
    session = await looking.metadata.open_session(10)
    membership = Membership(
        looking.metadata,
        broker_id="one",
        folder_id=FOLDER,
        lock_name=one.lock_name,
        service_url="pulsar://one",
        http_url="http://one",
        release="test",
    )
    assert await looking.absences.takes_no_clients("one"), "it is not registered"
    await membership.register(session, timeout_seconds=10)
    assert not await looking.absences.takes_no_clients("one")
    one.close()
    tries = looking.files.operations
    assert await looking.absences.takes_no_clients("one")
    assert looking.files.operations > tries
    tries = looking.files.operations
    assert await looking.absences.takes_no_clients("one")
    assert looking.files.operations == tries, "what has ended stays so"
    again = await BrokerHome.enter(looking.files.process(), DATA, FOLDER, "one")
    await session.close()
    session = await looking.metadata.open_session(10)
    await membership.register(session, timeout_seconds=10)
    assert not await looking.absences.takes_no_clients("one"), "another run"
    again.close()


async def test_a_lock_of_another_machine_proves_nothing(looking: Looking) -> None:
    """C21: then clients are sent to the registered broker."""
    await registered_as(looking, "another folder")
    assert not await looking.absences.takes_no_clients("one")
