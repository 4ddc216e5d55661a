"""A load of transactions on one scalable topic, which continues through crashes of the broker and records its history.

    load = Load(client, producer, history, happenings, outcomes, seed=7)
    nursery.start_soon(load.run)
    ...                                  # kill the broker, and tell: outcomes.broker_died(random)
    ends = await load.finish(segments)   # afterwards all transactions are decided, and `ends` are the last messages

Each worker has its own keys and sends one message after another, so the order of every key is known. But it has several
transactions open at a time, and they end in another order than they began. Some are committed, some aborted, some left
to time out. The seed decides what each transaction does. The timing depends on the machine.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from tests.support.happenings import Happenings
from tests.support.history import History, Place, Sent, Transaction
from tests.support.layout_changes import SegmentView
from tests.support.outcomes import LEFT_SECONDS, TIMEOUT_SECONDS, Outcomes, Running
from tidewire.client.client import Client
from tidewire.client.producer import Producer
from tidewire.client.sending import Receipt
from tidewire.protocol.errors import TidewireError
from tidewire.protocol.positions import MessageId

WORKERS: Final = 8
KEYS_PER_WORKER: Final = 6
OPEN_PER_WORKER_MAX: Final = 3

BEGUN: Final = "begun"
SENT: Final = "sent"
RECEIVED: Final = "received"

BEGIN: Final = "begin"
RECEIPT: Final = "receipt"


@dataclass(eq=False, slots=True)
class _Ours:
    """A transaction of a worker."""

    record: Transaction
    running: Running
    sends: list[tuple[Sent, Receipt]] = field(default_factory=list)
    failed: bool = False


class Load:
    """See the module."""

    def __init__(
        self,
        client: Client,
        producer: Producer,
        history: History,
        happenings: Happenings,
        outcomes: Outcomes,
        *,
        seed: int,
        pause_seconds_max: float = 0.0,
        is_full: Callable[[], bool] = lambda: False,
        wait_room: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        """Set up a load through `producer`, on an existing topic.

        Workers pause at most this long between two transactions. While `is_full`, each ends what it has open, and then
        pauses for as long as `wait_room` takes.
        """
        self._is_full = is_full
        self._wait_room = wait_room
        self.complaints: list[str] = []
        self._client = client
        self._producer = producer
        self._history = history
        self._happenings = happenings
        self._outcomes = outcomes
        self._seed = seed
        self._pause_seconds_max = pause_seconds_max
        self._stopping = False
        self._stopped = trio.Event()

    async def run(self) -> None:
        """Run until `finish` is called."""
        async with trio.open_nursery() as nursery:
            for worker in range(WORKERS):
                nursery.start_soon(self._work, worker)
        self._stopped.set()

    async def finish(self, segments: Iterable[SegmentView]) -> set[bytes]:
        """End everything. Return the value of the last message of each of these segments; all are committed."""
        self._stopping = True
        await self._stopped.wait()
        await self._outcomes.finish()
        ours = await self._new(TIMEOUT_SECONDS)
        values = {(await self._send(ours, segment.key())).value() for segment in segments}
        await self._await_receipts(ours)
        await self._outcomes.commit(ours.running, Random(self._seed))
        return values

    async def _work(self, worker: int) -> None:
        random = Random(f"{self._seed}/worker {worker}")
        keys = [f"{worker}-{number}" for number in range(KEYS_PER_WORKER)]
        open_ones: deque[_Ours] = deque()
        while not self._stopping:
            try:
                ours = await self._begin(random, keys)
            except TidewireError as error:
                self.complaints.append(f"no transaction could be begun: {error!r}")
                return
            if ours is not None:
                open_ones.append(ours)
            while len(open_ones) > random.randint(0, OPEN_PER_WORKER_MAX):
                if random.random() < 0.3:
                    open_ones.rotate(1)
                await self._end(open_ones.popleft(), random)
            if self._is_full():
                # First, because they would be past their time-outs after a long pause.
                while open_ones:
                    await self._end(open_ones.popleft(), random)
                await self._wait_room()
            if self._pause_seconds_max:
                await trio.sleep(random.uniform(0, self._pause_seconds_max))
        for ours in open_ones:
            await self._end(ours, random)

    async def _new(self, timeout_seconds: float) -> _Ours:
        with self._happenings.timed(BEGIN):
            handle = await self._client.new_transaction(timeout_seconds)
        record = self._history.begin(handle.transaction_id)
        return _Ours(record, Running(record, handle, trio.current_time()))

    async def _begin(self, random: Random, keys: list[str]) -> _Ours | None:
        is_left = random.random() < 0.12
        ours = await self._new(LEFT_SECONDS if is_left else TIMEOUT_SECONDS)
        self._happenings.note(BEGUN)
        for _ in range(random.randint(1, 8)):
            await self._send(ours, random.choice(keys), padding=random.choice((0, 10, 100, 100, 2000, 20_000)))
            if random.random() < 0.3:
                await trio.sleep(random.uniform(0, 0.004))
        if is_left:
            # Its sends still leave, and may or may not be answered.
            self._outcomes.leave(ours.running)
            return None
        return ours

    async def _send(self, ours: _Ours, key: str, padding: int = 0) -> Sent:
        sent = self._history.send(ours.record, key)
        try:
            receipt = await self._producer.enqueue(sent.value(padding), key=key, txn=ours.running.handle)
        except TidewireError:
            ours.failed = True
        else:
            self._happenings.note(SENT)
            ours.sends.append((sent, receipt))
        return sent

    async def _end(self, ours: _Ours, random: Random) -> None:
        await self._await_receipts(ours)
        if ours.failed or random.random() < 0.15:
            await self._outcomes.abort(ours.running)
        else:
            await self._outcomes.commit(ours.running, random)

    async def _await_receipts(self, ours: _Ours) -> None:
        for sent, receipt in ours.sends:
            try:
                with self._happenings.timed(RECEIPT):
                    message_id = await receipt
            except TidewireError:
                ours.failed = True
            else:
                sent.place = place_of(message_id)
                self._happenings.note(RECEIVED)


def place_of(message_id: MessageId) -> Place:
    """Return the message's position."""
    return Place(message_id.segment_id, message_id.ledger_id, message_id.entry_id, message_id.batch_index)
