"""Who is gone: a missing registration, together with a free lock or a grace."""

from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from broker.cluster import absences
from broker.cluster.absences import PROBE_SECONDS, Absences
from broker.cluster.membership import BROKERS, Membership
from storage import dead_or_alive
from storage.broker_home import BrokerHome
from storage.dead_or_alive import Liveness
from storage.errors import WriterAlive
from storage.files import Files
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Session, StoreUnavailable
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


def membership_of_one(looking: Looking, folder: str, *, lock: str) -> Membership:
    return Membership(
        looking.metadata,
        broker_id="one",
        folder_id=folder,
        lock_name=lock,
        service_url="pulsar://one",
        http_url="http://one",
        release="test",
    )


async def registered_as(looking: Looking, folder: str, *, lock: str = "l") -> Session:
    session = await looking.metadata.open_session(10)
    other = membership_of_one(looking, folder, lock=lock)
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
    await trio.sleep(0.9 * GRACE)
    assert not await looking.is_gone()
    await trio.sleep(0.1 * GRACE)
    assert await looking.is_gone()
    one.close()


async def test_the_end_of_the_grace_is_known(looking: Looking, one: BrokerHome, autojump_clock: MockClock) -> None:
    """C12: so nobody asks in between. Nobody knows when a registration ends."""
    with pytest.raises(WriterAlive) as refused:
        await looking.absences.require_gone(WRITER, looking.lock)
    assert refused.value.gone_at is not None
    await trio.sleep_until(refused.value.gone_at)
    assert await looking.is_gone()
    await registered_as(looking, FOLDER)
    with pytest.raises(WriterAlive) as refused:
        await looking.absences.require_gone(WRITER, looking.lock)
    assert refused.value.gone_at is None
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
    # So soon, only the session says that this process was cut off itself.
    await trio.sleep(GRACE)
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


async def test_a_killed_brokers_session_is_ended_at_once(looking: Looking, one: BrokerHome) -> None:
    """C21: its free lock shows that it has ended. Its registration says the name of the lock, and which session."""
    session = await looking.metadata.open_session(10)
    membership = membership_of_one(looking, FOLDER, lock=one.lock_name)
    assert await looking.absences.has_ended("one"), "it is not registered"
    await membership.register(session, timeout_seconds=10)
    await looking.metadata.put("/claimed", b"", session=session)
    one.close()
    assert await looking.absences.has_ended("one")
    await session.wait_lost()
    assert await looking.metadata.get(BROKERS + "one") is None
    assert await looking.metadata.get("/claimed") is None
    tries = looking.files.operations
    assert await looking.absences.has_ended("one")
    assert looking.files.operations == tries, "nothing is left to end"


async def test_a_broker_that_is_back_keeps_its_session(looking: Looking, one: BrokerHome) -> None:
    """C21, E14: the registration that was tried names the session to end, not the id of the broker."""
    membership = membership_of_one(looking, FOLDER, lock=one.lock_name)
    before = await looking.metadata.open_session(10)
    await membership.register(before, timeout_seconds=10)
    end_session = looking.metadata.end_session
    after = await looking.metadata.open_session(10)

    async def return_first(session_id: int) -> None:
        assert session_id == before.id
        await membership.register(after, timeout_seconds=10)
        await end_session(session_id)

    looking.metadata.end_session = return_first  # type: ignore[method-assign]
    one.close()
    await looking.absences.has_ended("one")
    assert not after.has_ended
    assert await looking.metadata.get(BROKERS + "one") is not None


async def test_a_broker_that_returns_during_the_try_keeps_its_session(
    looking: Looking, one: BrokerHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C21, E14: the lock was free before it took it again. Only the session of before ends."""
    before = await registered_as(looking, FOLDER, lock=one.lock_name)
    after = await looking.metadata.open_session(10)
    one.close()

    async def probe(files: Files, data_dir: Path, broker_id: str, lock_name: str | None) -> Liveness:
        found = await dead_or_alive.probe(files, data_dir, broker_id, lock_name)
        await membership_of_one(looking, FOLDER, lock=one.lock_name).register(after, timeout_seconds=10)
        return found

    monkeypatch.setattr(absences, "probe", probe)
    await looking.absences.has_ended("one")
    assert (before.has_ended, after.has_ended) == (True, False)


async def test_a_held_lock_is_tried_once_by_clients_that_come_together(
    looking: Looking, one: BrokerHome, autojump_clock: MockClock
) -> None:
    """C21: and again a moment later."""
    await registered_as(looking, FOLDER, lock=one.lock_name)
    assert not await looking.absences.has_ended("one")
    tries = looking.files.operations
    for _ in range(3):
        assert not await looking.absences.has_ended("one")
    assert looking.files.operations == tries
    one.close()
    await trio.sleep(PROBE_SECONDS)
    assert await looking.absences.has_ended("one")


async def test_another_registration_is_tried_at_once(
    looking: Looking, one: BrokerHome, autojump_clock: MockClock
) -> None:
    """C21: that an earlier process lived a moment ago says nothing about the one that is registered now."""
    before = await registered_as(looking, FOLDER, lock=one.lock_name)
    assert not await looking.absences.has_ended("one")
    await before.close()
    await registered_as(looking, FOLDER, lock=one.lock_name)
    one.close()
    assert await looking.absences.has_ended("one")


async def test_a_lock_of_another_machine_proves_nothing(looking: Looking) -> None:
    """C21: then clients are sent to the registered broker."""
    await registered_as(looking, "another folder")
    assert not await looking.absences.has_ended("one")


async def test_a_free_lock_is_tried_once_by_clients_that_come_together(
    looking: Looking, one: BrokerHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C21: all of them look up topics of the killed broker, before its session is ended."""
    await registered_as(looking, FOLDER, lock=one.lock_name)
    one.close()
    probes: list[str] = []

    async def probe(files: Files, data_dir: Path, broker_id: str, lock_name: str | None) -> Liveness:
        probes.append(broker_id)
        return await dead_or_alive.probe(files, data_dir, broker_id, lock_name)

    monkeypatch.setattr(absences, "probe", probe)
    answers: list[bool] = []

    async def ask() -> None:
        answers.append(await looking.absences.has_ended("one"))

    async with trio.open_nursery() as clients:
        for _ in range(100):
            clients.start_soon(ask)
    assert answers == [True] * 100
    assert probes == ["one"]


async def test_an_end_without_an_answer_is_tried_again(looking: Looking, one: BrokerHome) -> None:
    """C21: the session may still be there, and the claims with it."""
    session = await registered_as(looking, FOLDER, lock=one.lock_name)
    one.close()
    end_session = looking.metadata.end_session

    async def unanswered(session_id: int) -> None:
        looking.metadata.end_session = end_session  # type: ignore[method-assign]
        raise StoreUnavailable("no answer")

    looking.metadata.end_session = unanswered  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await looking.absences.has_ended("one")
    assert await looking.absences.has_ended("one")
    assert session.has_ended


@pytest.mark.parametrize("value", [b"{", b"[]", b"{}", b'{"lock": 7, "folder": 7}'])
async def test_a_broker_whose_registration_is_damaged_may_be_alive(
    looking: Looking, one: BrokerHome, value: bytes
) -> None:
    """E11: lookups of its topics, and recoveries of its journal, wait for the end of its session."""
    await looking.metadata.put(BROKERS + "one", value)
    one.close()
    assert not await looking.absences.has_ended("one")
    assert not await looking.is_gone()
    await looking.metadata.delete(BROKERS + "one")
    assert await looking.is_gone()
