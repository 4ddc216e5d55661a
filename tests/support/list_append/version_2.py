"""A client of transaction version 2 (KIP-890), over a socket. It repeats each request until it is answered.

A repeated batch has its sequence, so it is stored once. A repeated end has the epoch that it ends, so it ends nothing
else.
"""

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from time import monotonic_ns
from typing import Final, TypeVar

import trio

from tests.support.kafka_clients.contract import Refused
from tests.support.kafka_connection import READ_COMMITTED, KafkaClient, committed_entries
from tests.support.kafka_producer import TransactionalProducer
from tests.support.list_append.clients import READ_SECONDS_MAX, TOPIC, TRANSACTION_MS
from tests.support.list_append.history import Entry, Reading
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.list_offsets import LATEST

CALL_SECONDS_MAX: Final = 30.0
ANSWER_SECONDS_MAX: Final = 10.0
AGAIN_SECONDS: Final = 0.03

_AGAIN: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
_LOST: Final = (OSError, EOFError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)
_One = TypeVar("_One")


class Version2Lists:
    """See `Lists`. A thread runs Trio for it."""

    def __init__(self, address: str, transactional_id: str, token: trio.lowlevel.TrioToken) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self.token = token
        self._client: KafkaClient | None = None
        self._id = transactional_id
        self._producer: TransactionalProducer | None = None
        self._pending: dict[int, list[int]] = {}
        """What a flush sends, by list."""

    def begin_session(self) -> None:
        """See `Lists`."""

        async def ask(client: KafkaClient) -> int:
            producer = TransactionalProducer(client, self._id, 2)
            code = await producer.begin_session(TRANSACTION_MS)
            self._producer = producer
            return code

        self._repeat(ask)

    def begin(self) -> None:
        """See `Lists`."""
        self._pending.clear()

    def append(self, of_list: int, value: int) -> None:
        """See `Lists`."""
        self._pending.setdefault(of_list, []).append(value)

    def flush(self) -> dict[int, int]:
        """See `Lists`. The values of a list are a batch."""
        offsets: dict[int, int] = {}
        for of_list, values in self._pending.items():

            async def ask(client: KafkaClient, of_list: int = of_list, values: list[int] = values) -> int:
                answer = await self._of(client).send(TOPIC, *(b"%d" % value for value in values), partition=of_list)
                offsets.update((value, answer.base_offset + number) for number, value in enumerate(values))
                return answer.error_code

            self._repeat(ask)
        self._pending.clear()
        return offsets

    def end(self, *, is_commit: bool) -> None:
        """See `Lists`."""
        self._repeat(lambda client: self._of(client).end(is_commit=is_commit))

    def read(self, of_list: int) -> Reading | None:
        """See `Lists`."""
        return trio.from_thread.run(self._read, of_list, trio_token=self.token)

    async def _read(self, of_list: int) -> Reading | None:
        began_ns = monotonic_ns()
        entries: list[Entry] = []
        try:
            with trio.fail_after(READ_SECONDS_MAX):
                client = await self._connected()
                asked = partial(client.offset, TOPIC, LATEST, partition=of_list, isolation=READ_COMMITTED)
                end, offset = (await asked()).offset, 0
                while offset < end:
                    data = await client.fetch(TOPIC, offset, partition=of_list, isolation=READ_COMMITTED)
                    found, offset = committed_entries(data, offset)
                    entries += [Entry(place, int(value or b"")) for place, value in found]
        except _LOST:
            await self.disconnect()
            return None
        return Reading(of_list, began_ns, monotonic_ns(), end, tuple(entries))

    def _of(self, client: KafkaClient) -> TransactionalProducer:
        assert self._producer is not None, "a session has begun"
        self._producer.client = client
        return self._producer

    def _repeat(self, ask: Callable[[KafkaClient], Awaitable[int]]) -> None:
        """Ask until there is an answer that says more than that it is to be asked again.

        Raises:
            Refused: it is refused, or nobody answers.
        """
        trio.from_thread.run(self._repeated, ask, trio_token=self.token)

    async def _repeated(self, ask: Callable[[KafkaClient], Awaitable[int]]) -> None:
        code = -1
        with trio.move_on_after(CALL_SECONDS_MAX):
            while True:
                try:
                    with trio.fail_after(ANSWER_SECONDS_MAX):
                        code = await ask(await self._connected())
                except _LOST:
                    await self.disconnect()
                else:
                    if code == ErrorCode.NONE:
                        return
                    if code not in _AGAIN:
                        break
                await trio.sleep(AGAIN_SECONDS)
        raise Refused(code, "the broker refuses, or does not answer")

    async def _connected(self) -> KafkaClient:
        if self._client is None:
            self._client = KafkaClient(await trio.open_tcp_stream(*self._address))
        return self._client

    async def disconnect(self) -> None:
        """Leave the connection. The next request makes another one."""
        if self._client is not None:
            client, self._client = self._client, None
            await trio.aclose_forcefully(client.stream)


@contextmanager
def running_lists(address: str, transactional_id: str) -> Iterator[Version2Lists]:
    """Run a client for the length of the block."""
    started: SimpleQueue[tuple[Version2Lists, trio.CancelScope]] = SimpleQueue()

    async def serve() -> None:
        lists = Version2Lists(address, transactional_id, trio.lowlevel.current_trio_token())
        with trio.CancelScope() as scope:
            started.put((lists, scope))
            await trio.sleep_forever()
        await lists.disconnect()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    lists, scope = started.get()
    try:
        yield lists
    finally:
        # This may be a thread that runs Trio, too.
        lists.token.run_sync_soon(scope.cancel)
        thread.join()
