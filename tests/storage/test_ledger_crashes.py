"""Lives of a broker's ledgers that end at a random moment: then exactly the confirmed entries must be there.

A `Topic` is the model: what was appended, in order, and how much was confirmed. Each life opens all topics (which
compares them with the model), then appends, reads, rolls, trims and seals with several tasks. It ends by a failing
disk,
a power loss or the death of the process, perhaps while it still recovers from the life before.
"""

import random
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import trio
from hypothesis import strategies as st

from storage.directory_ledger_store import DirectoryLedgerStore
from storage.entry import Entry
from storage.errors import LedgerFailed, LedgerNotMade, LedgerSealed
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_ids import LedgerIds
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, LATEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import ledger_store
from tests.support.schedules import every_schedule

TOPICS: Final = 3
LIVES: Final = 6


@dataclass
class Topic:
    name: str
    appended: list[tuple[Position, bytes]] = field(default_factory=list)
    confirmed: Position = EARLIEST
    trimmed: Position = EARLIEST
    """The most that may have been removed."""
    highest: Position = EARLIEST
    """The highest position ever given out, also of entries that were lost."""
    first_index: int = 0
    is_sealed: bool = False

    def took(self, position: Position, payload: bytes) -> None:
        assert position > self.highest, "no position is ever used twice"
        self.highest = position
        self.appended.append((position, payload))

    def recovered(self, entries: list[Entry], ledger: ManagedLedger) -> None:
        """Compare what a restart finds with the model, and make it the new model."""
        found = [(entry.position, entry.payload) for entry in entries]
        gone = (entries[0].first_index if entries else ledger.next_index) - self.first_index
        assert all(position <= self.trimmed for position, _payload in self.appended[:gone]), (
            "only what was trimmed goes"
        )
        self.first_index += gone
        kept = self.appended[gone:]
        assert found == kept[: len(found)], "in order, at their positions, unchanged"
        lost = kept[len(found) :]
        assert all(position > self.confirmed for position, _payload in lost), "nothing that was confirmed is lost"
        assert [entry.first_index for entry in entries] == list(
            range(self.first_index, self.first_index + len(entries))
        )
        assert ledger.next_index == self.first_index + len(found)
        assert ledger.confirmed.value == ledger.last_position
        assert ledger.confirmed.value >= self.confirmed
        assert not self.is_sealed or ledger.is_sealed
        self.appended = found
        self.confirmed = max(self.confirmed, ledger.confirmed.value)


async def read_all(ledger: ManagedLedger, rng: random.Random) -> list[Entry]:
    entries: list[Entry] = []
    at = EARLIEST
    while True:
        some = await ledger.read(
            at, upto=LATEST, entries_max=rng.randint(1, 20), bytes_max=rng.choice((1, 500, 100_000))
        )
        if not some:
            return entries
        entries.extend(some)
        at = ledger.next_after(some[-1].position)


async def appending(topic: Topic, ledger: ManagedLedger, rng: random.Random) -> None:
    for _ in range(rng.randint(5, 30)):
        for _ in range(rng.randint(1, 5)):
            await ledger.wait_room()
            size = rng.choice((0, 10, 100, 600, 3_000))
            payload = bytes(size) if rng.random() < 0.2 else rng.randbytes(size)
            topic.took(position := ledger.append(payload), payload)
        if rng.random() < 0.7:
            await ledger.confirmed.wait_for(position)
            topic.confirmed = max(topic.confirmed, position)
    if rng.random() < 0.2:
        await ledger.seal()
        topic.is_sealed = True


async def disturbing(topic: Topic, ledger: ManagedLedger, rng: random.Random) -> None:
    """Read while others write, and trim now and then."""
    for _ in range(4):
        for _ in range(rng.randint(0, 30)):
            await trio.lowlevel.checkpoint()
        if rng.random() < 0.3 and topic.appended:
            upto = rng.choice(topic.appended)[0]
            topic.trimmed = max(topic.trimmed, upto)
            await ledger.trim(upto)
        found = [(entry.position, entry.payload) for entry in await read_all(ledger, rng)]
        begin = topic.appended.index(found[0]) if found else 0
        assert topic.appended[begin : begin + len(found)] == found, "a reader sees what was appended, in order"
        assert all(position <= ledger.confirmed.value for position, _payload in found)


async def guarded(work: Awaitable[None]) -> None:
    """End the tasks with the errors that end the life."""
    with suppress(LedgerFailed, LedgerNotMade, LedgerSealed, OSError):
        await work


async def live(store: DirectoryLedgerStore, metadata: MemoryStore, topics: list[Topic], rng: random.Random) -> None:
    config = ManagedLedgerConfig(ledger_bytes_max=rng.choice((1_000, 10_000, 1_000_000)))
    ids = LedgerIds(metadata)
    opened: list[ManagedLedger] = []
    for topic in topics:
        ledger = await open_managed_ledger(
            topic.name, metadata=metadata, ledgers=store, claim=None, config=config, now_ms=lambda: 1_000, ids=ids
        )
        topic.recovered(await read_all(ledger, rng), ledger)
        opened.append(ledger)
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as tasks:
            for topic, ledger in zip(topics, opened, strict=True):
                nursery.start_soon(guarded, ledger.run())
                # One appender a topic: the model's order is the order of its calls.
                tasks.start_soon(guarded, appending(topic, ledger, rng))
                tasks.start_soon(guarded, disturbing(topic, ledger, rng))
        nursery.cancel_scope.cancel()


def has_suffix(suffix: str, path: Path) -> bool:
    return path.suffix == suffix


async def story(seed: int) -> None:
    rng = random.Random(seed)
    disk = SimulatedFiles(seed=seed)
    metadata = MemoryStore()
    topics = [Topic(f"topic-{number}") for number in range(TOPICS)]
    for _life in range(LIVES):
        if rng.random() < 0.3:
            suffix = rng.choice((".journal", ".ledger"))
            operation = rng.choice(("write", "sync"))
            disk.fail(operation, where=partial(has_suffix, suffix), drops=rng.random() < 0.7)
        disk.lose_power_after(rng.choice((20, 100, 300, 1_000)) + rng.randrange(100))
        try:
            async with ledger_store(
                disk,
                journal_file_bytes=rng.choice((2_048, 20_000, 100_000)),
                tail_bytes_max=rng.choice((0, 3_000, 1_000_000)),
            ) as store:
                await guarded(live(store, metadata, topics, rng))
        except OSError:
            pass  # It ended while the store was being opened.
        disk = disk.crash() if rng.random() < 0.7 else disk.kill()
    async with ledger_store(disk) as store:
        for topic in topics:
            ledger = await open_managed_ledger(
                topic.name,
                metadata=metadata,
                ledgers=store,
                claim=None,
                config=ManagedLedgerConfig(),
                now_ms=lambda: 1_000,
            )
            topic.recovered(await read_all(ledger, rng), ledger)


@every_schedule(examples_max=25, seed=st.integers(0, 1_000_000))
async def test_nothing_confirmed_is_lost_and_nothing_else_is_made_up(seed: int) -> None:
    """D9: lives end anywhere: torn writes, lost names, half a recovery, half a checkpoint, half a roll."""
    await story(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("millions", range(1, 11))
@every_schedule(examples_max=4, seed=st.integers(0, 999_999))
async def test_nothing_confirmed_is_lost_over_many_seeds(millions: int, seed: int) -> None:
    """D9: the same, longer. Each part stays far below a test's time limit, and has its own seeds."""
    await story(millions * 1_000_000 + seed)
