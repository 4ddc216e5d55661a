"""A broker begins although the metadata store does not answer: it tries again, and nothing is done twice."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from broker.beginning import AGAIN_SECONDS_MAX, Begun, begin
from broker.cluster.membership import BROKERS
from broker.config import BrokerSettings, load_settings
from broker.registration import register_broker
from broker.startup_errors import operator_message
from storage.journal_records import JOURNALS, JournalRecords, Pending
from storage.metadata.store import MetadataError, Op, Put, SessionLost, StoreEnded, StoreFull, StoreUnavailable
from tests.support.disk import SimulatedFiles
from tests.support.steered_store import SteeredStore

SETTINGS = load_settings({"data_dir": "/data", "broker_id": "one", "journal_file_bytes_max": "1MiB"}, None)


@asynccontextmanager
async def begun(
    store: SteeredStore, files: SimulatedFiles, settings: BrokerSettings = SETTINGS
) -> AsyncIterator[Begun]:
    register = partial(
        register_broker,
        settings,
        files,
        store,
        service_url="pulsar://one",
        http_url="http://one",
        internal_url=None,
        release="test",
    )
    place = await begin(register, settings, store)
    async with trio.open_nursery() as nursery:
        await nursery.start(place.ledgers.run)
        yield place
        nursery.cancel_scope.cancel()
    place.registration.home.close()


@pytest.mark.parametrize("made", [True, False])
async def test_any_write_of_a_start_may_have_no_answer(made: bool, autojump_clock: MockClock) -> None:
    """E14, R28: a controller that had just died ended the process, with the advice to look at the disk."""
    for number in range(1, 50):
        store, files = SteeredStore(), SimulatedFiles(seed=number)
        store.leave_unanswered(number, made=made)
        async with begun(store, files) as place:
            registered = await store.get(BROKERS + "one")
            assert registered is not None
            assert registered.session == place.registration.session.id
            recorded = await JournalRecords(store, SETTINGS.data_dir).read("one")
            assert recorded is not None
            assert recorded.life == place.ledgers.writer.life
        if store.has_answered_all:
            assert number > 3, "a start has several writes"
            return


async def test_a_session_that_ends_during_the_start_is_replaced(autojump_clock: MockClock) -> None:
    """E14: the process was stopped for longer than its session's timeout."""
    store, files = SteeredStore(), SimulatedFiles(seed=1)
    losses: list[str] = []

    async def lose(ops: Sequence[Op]) -> None:
        if not losses and any(isinstance(op, Put) and op.key.startswith(JOURNALS) for op in ops):
            losses.append("lost")
            raise SessionLost("/brokers/one: session 7 has ended")

    store.before = lose
    async with begun(store, files):
        assert losses == ["lost"]


async def test_a_recovery_at_the_same_moment_delays_the_start(autojump_clock: MockClock) -> None:
    """C11, E2, E14: another broker was recovering the journal of this one's last run, and the start ended."""
    store, files = SteeredStore(), SimulatedFiles(seed=1)
    async with begun(store, files) as place:
        life = place.ledgers.writer.life
    records = JournalRecords(store, SETTINGS.data_dir)
    reservations: list[Pending] = []

    async def reserve(ops: Sequence[Op]) -> None:
        if not reservations and any(isinstance(op, Put) and op.key.startswith(JOURNALS) for op in ops):
            reservations.append(Pending(life.number + 9, 7, "two"))
            known = await records.read("one")
            assert known is not None
            await records.reserve("one", known, reservations[0], None)

    store.before = reserve
    async with begun(store, files) as place:
        assert place.ledgers.writer.epoch == life.number + 10


@pytest.mark.parametrize("cause", [StoreEnded(OSError("the log's disk failed")), StoreFull("no space is left")])
async def test_what_does_not_pass_by_itself_ends_the_start(cause: MetadataError, autojump_clock: MockClock) -> None:
    """E14: the operator is told at once."""
    store = SteeredStore()

    async def fail(_ops: Sequence[Op]) -> None:
        raise cause

    store.before = fail
    began = trio.current_time()
    with pytest.raises(type(cause)):
        async with begun(store, SimulatedFiles(seed=1)):
            pass
    assert trio.current_time() == began


async def test_a_start_gives_up_in_the_end(autojump_clock: MockClock) -> None:
    """E14: with a sentence that says what to look at."""
    store, files = SteeredStore(), SimulatedFiles(seed=1)

    async def away(_ops: Sequence[Op]) -> None:
        raise StoreUnavailable("away")

    store.before = away
    began = trio.current_time()
    with pytest.raises(StoreUnavailable) as given_up:
        async with begun(store, files):
            pass
    assert AGAIN_SECONDS_MAX <= trio.current_time() - began < 2 * AGAIN_SECONDS_MAX
    member = load_settings({"data_dir": "/data", "broker_id": "one", "internal": "127.0.0.1:6670"}, None)
    assert operator_message(given_up.value, member) == (
        "The cluster's metadata cannot be used: away. Check the other brokers and the disk, then start this broker "
        "again."
    )
    assert operator_message(SessionLost("session 7 has ended"), member) is not None
    store.before = None
    async with begun(store, files):
        pass
