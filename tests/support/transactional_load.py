"""A load of transactions on one scalable topic, which goes on through crashes of the broker and writes its history.

    load = Load(client, producer, http_address, history, seed=7)
    nursery.start_soon(load.run)
    ...                                  # kill the broker, and tell: load.broker_died(random)
    ends = await load.finish()           # afterwards: everything is decided, and the last messages of all are named

Each worker has keys of its own and sends one message after another, so the order of every key is known; but it has
several transactions open at a time, which end in another order than they began in. Some are committed, some aborted,
some left to their time-out. Of the commits that are unanswered when the broker dies some are asked again by the client,
some are given up and aborted, which tells how they ended, and some are given up until the end.

Which transaction does what is drawn from the seed; what meets what is up to the machine.
"""

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

import h11
import orjson
import trio

from broker.addresses import Address
from tests.support.happenings import Happenings
from tests.support.history import Fate, History, Place, Sent, Transaction
from tests.support.http import Answer, request
from tidewire.client.client import Client
from tidewire.client.errors import (
    OutcomeUnknown,
    TidewireError,
    TransactionConflict,
    TransactionNotFound,
)
from tidewire.client.message import MessageId
from tidewire.client.producer import Producer
from tidewire.client.sending import Receipt
from tidewire.client.transactions import Transaction as ClientTransaction
from tidewire.wire.pulsar.hashing import key_hash

WORKERS: Final = 8
KEYS_PER_WORKER: Final = 6
OPEN_PER_WORKER_MAX: Final = 3

TIMEOUT_SECONDS: Final = 120.0
"""Of transactions that are going to be ended."""

LEFT_SECONDS: Final = 2.0
"""Of transactions that are left to their time-out."""

RETENTION_SECONDS: Final = 30.0
"""So long at least a broker under this load must know a finished transaction."""

ACTIVE_SEGMENTS_MAX: Final = 8
"""With more, segments are merged instead of split."""

BEGUN: Final = "begun"
SENT: Final = "sent"
RECEIVED: Final = "received"
COMMIT_ASKED: Final = "commit asked"
COMMITTED: Final = "committed"
ABORT_ASKED: Final = "abort asked"
SPLIT_ASKED: Final = "split asked"
SPLIT_DONE: Final = "split done"


class SegmentView(NamedTuple):
    """A segment of the layout."""

    segment_id: int
    start: int
    end: int
    is_active: bool


@dataclass(eq=False, slots=True)
class _Ours:
    """A transaction of a worker."""

    record: Transaction
    handle: ClientTransaction
    begun: float
    sends: list[tuple[Sent, Receipt]] = field(default_factory=list)
    failed: bool = False
    asking: trio.CancelScope | None = None
    """While its commit is unanswered."""


class Load:
    """See the module."""

    def __init__(
        self, client: Client, producer: Producer, http: Address, topic: str, history: History, *, seed: int
    ) -> None:
        """A load through `producer` on `topic`, which exists."""
        self.happenings = Happenings()
        self.complaints: list[str] = []
        self.unanswered_seen = 0
        """Commits that were unanswered when the broker died."""
        self._client = client
        self._producer = producer
        self._http = http
        self._path = "/admin/v2/scalable/" + topic.removeprefix("topic://")
        self._history = history
        self._seed = seed
        self._stopping = False
        self._stopped = trio.Event()
        self._asking: set[_Ours] = set()
        self._unresolved: list[_Ours] = []
        self._left: list[_Ours] = []

    async def run(self) -> None:
        """Work until `finish` is called."""
        async with trio.open_nursery() as nursery:
            for worker in range(WORKERS):
                nursery.start_soon(self._work, worker)
        self._stopped.set()

    def broker_died(self, random: Random) -> None:
        """Give some of the commits up that are unanswered."""
        for ours in [ours for ours in self._asking if ours.asking is not None]:
            self.unanswered_seen += 1
            if random.random() < 0.6:
                assert ours.asking is not None, "filtered above"
                ours.asking.cancel()

    async def finish(self) -> set[bytes]:
        """End everything; return the values of the last message of every active segment, which are committed."""
        self._stopping = True
        await self._stopped.wait()
        for ours in self._unresolved:
            await self._ask_by_aborting(ours)
        for ours in self._left:
            try:
                await ours.handle.abort()
            except TransactionConflict as conflict:
                self.complaints.append(f"{ours.record} was never committed, but cannot be aborted: {conflict}")
            except TransactionNotFound as unknown:
                self._complain_if_recent(ours, unknown)
            ours.record.fate = Fate.ABORTED
        return await self._mark_the_end()

    # Transactions

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
        for ours in open_ones:
            await self._end(ours, random)

    async def _begin(self, random: Random, keys: list[str]) -> _Ours | None:
        is_left = random.random() < 0.12
        handle = await self._client.new_transaction(LEFT_SECONDS if is_left else TIMEOUT_SECONDS)
        ours = _Ours(self._history.begin(handle.transaction_id), handle, trio.current_time())
        self.happenings.note(BEGUN)
        for _ in range(random.randint(1, 8)):
            await self._send(ours, random.choice(keys), padding=random.choice((0, 10, 100, 100, 2000, 20_000)))
            if random.random() < 0.3:
                await trio.sleep(random.uniform(0, 0.004))
        if is_left:
            # Its sends go on their way all the same, and are answered or not.
            self._left.append(ours)
            return None
        return ours

    async def _send(self, ours: _Ours, key: str, padding: int = 0) -> Sent:
        sent = self._history.send(ours.record, key)
        try:
            receipt = await self._producer.enqueue(sent.value(padding), key=key, txn=ours.handle)
        except TidewireError:
            ours.failed = True
        else:
            self.happenings.note(SENT)
            ours.sends.append((sent, receipt))
        return sent

    async def _end(self, ours: _Ours, random: Random) -> None:
        await self._await_receipts(ours)
        if ours.failed or random.random() < 0.15:
            await self._abort(ours)
        else:
            await self._commit(ours, random)

    async def _await_receipts(self, ours: _Ours) -> None:
        for sent, receipt in ours.sends:
            try:
                message_id = await receipt
            except TidewireError:
                ours.failed = True
            else:
                sent.place = place_of(message_id)
                self.happenings.note(RECEIVED)

    async def _abort(self, ours: _Ours) -> None:
        self.happenings.note(ABORT_ASKED)
        try:
            await ours.handle.abort()
        except TransactionConflict as conflict:
            self.complaints.append(f"{ours.record} was never committed, but cannot be aborted: {conflict}")
        except OutcomeUnknown:
            return
        except TidewireError as error:
            self._complain_if_recent(ours, error)
            return
        ours.record.fate = Fate.ABORTED

    async def _commit(self, ours: _Ours, random: Random) -> None:
        ours.record.fate = Fate.UNKNOWN
        self.happenings.note(COMMIT_ASKED)
        self._asking.add(ours)
        try:
            with trio.CancelScope() as ours.asking:
                await ours.handle.commit()
                ours.record.fate = Fate.COMMITTED
                self.happenings.note(COMMITTED)
        except TidewireError as error:
            self.complaints.append(f"a commit of {ours.record}, sent whole and in time, failed: {error!r}")
        finally:
            self._asking.discard(ours)
        if ours.asking is not None and ours.asking.cancelled_caught:
            if random.random() < 0.5:
                await self._ask_by_aborting(ours)
            else:
                self._unresolved.append(ours)

    async def _ask_by_aborting(self, ours: _Ours) -> None:
        """Learn how an unanswered commit ended; one that never arrived is aborted by this."""
        try:
            await ours.handle.abort()
        except TransactionConflict:
            ours.record.fate = Fate.COMMITTED
        except TidewireError as error:
            self._complain_if_recent(ours, error)
        else:
            ours.record.fate = Fate.ABORTED

    def _complain_if_recent(self, ours: _Ours, error: TidewireError) -> None:
        if trio.current_time() - ours.begun < RETENTION_SECONDS:
            self.complaints.append(f"the broker does not tell the outcome of {ours.record}: {error!r}")

    async def _mark_the_end(self) -> set[bytes]:
        keys = []
        for segment in await self.segments():
            if segment.is_active:
                candidates = (f"end-{number}" for number in range(10_000_000))
                keys.append(next(key for key in candidates if segment.start <= key_hash(key) <= segment.end))
        handle = await self._client.new_transaction(TIMEOUT_SECONDS)
        ours = _Ours(self._history.begin(handle.transaction_id), handle, trio.current_time())
        values = {(await self._send(ours, key)).value() for key in keys}
        await self._await_receipts(ours)
        await handle.commit()
        ours.record.fate = Fate.COMMITTED
        return values

    # The layout

    async def segments(self) -> list[SegmentView]:
        """The topic's segments, as the broker says.

        Raises:
            OSError, AssertionError: it was not there to answer.
        """
        answer = await request(self._http, "GET", self._path)
        assert answer.status == 200, answer.body
        return [
            SegmentView(view["segmentId"], view["hashRange"]["start"], view["hashRange"]["end"], view["active"])
            for view in orjson.loads(answer.body)["segments"].values()
        ]

    async def change_layout(self, random: Random) -> None:
        """Split a segment, or join two when there are many; the broker may die meanwhile."""
        try:
            active = sorted((view for view in await self.segments() if view.is_active), key=lambda view: view.start)
            if len(active) > ACTIVE_SEGMENTS_MAX:
                first = random.randrange(len(active) - 1)
                change = f"merge/{active[first].segment_id}/{active[first + 1].segment_id}"
            else:
                change = f"split/{random.choice(active).segment_id}"
            self.happenings.note(SPLIT_ASKED)
            answer = await request(self._http, "POST", f"{self._path}/{change}")
        except (OSError, AssertionError, trio.BrokenResourceError, h11.RemoteProtocolError):
            return  # It died. Whether the change was made is to be seen in the layout.
        self._judge_answer(change, answer)

    def _judge_answer(self, change: str, answer: Answer) -> None:
        # Another change may have come first, one that was carried on after a crash for instance.
        if answer.status == 204:
            self.happenings.note(SPLIT_DONE)
        elif answer.status not in {409, 412, 503}:
            self.complaints.append(f"{change} was answered {answer.status}: {answer.body!r}")


def place_of(message_id: MessageId) -> Place:
    """Where the message stands."""
    return Place(message_id.segment_id, message_id.ledger_id, message_id.entry_id, message_id.batch_index)
