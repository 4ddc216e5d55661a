"""The transaction coordinators: which broker leads each of them, and the requests to them.

A transaction's id names its coordinator in its upper half. The client opens one watch, and the broker pushes every
change of the leaders. Before the first request to a coordinator on a connection, the client sends TC_CLIENT_CONNECT.

A request is given up when its coordinator gets another leader, and made again there. The old leader may be stopped, and
its connection lasts longer than an operation may.
"""

import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final, NamedTuple, TypeVar

import anyio
from google.protobuf.message import Message as ProtobufMessage

from tidewire.client.connection import Connection
from tidewire.client.network import Network
from tidewire.client.waking import Changes, Signal
from tidewire.protocol.coordination import Ending, leaders_of, transaction_of
from tidewire.protocol.errors import ConnectFailed, ConnectionLost, TidewireError, fresh
from tidewire.protocol.features import require_transactions
from tidewire.protocol.listeners import Kind
from tidewire.protocol.refusals import TRANSIENT, BrokerBusy, refusal
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_log: Final = logging.getLogger(__name__)

_Answer = TypeVar("_Answer", bound=ProtobufMessage)


class _Asking(NamedTuple):
    """A request in progress."""

    coordinator: int
    url: str
    """The leader that is asked."""
    scope: anyio.CancelScope


class Coordinators:
    """All coordinators of a cluster. It sends nothing before the first transaction."""

    def __init__(self, network: Network) -> None:
        """The coordinators that the brokers of `network` lead."""
        self._network = network
        self._backoff = network.backoff()
        self._turn = count()
        self._leaders: dict[int, str] = {}
        """By coordinator, its leader's URL."""
        self._changed = Changes()
        self._is_watching = False
        self._failure: TidewireError | None = None
        self._ended = Signal()
        self._end: TidewireError | None = None
        self._introduced: dict[int, Connection] = {}
        self._asking: set[_Asking] = set()

    async def new_transaction(self, timeout_ms: int) -> tuple[int, int]:
        """Begin a transaction and return its id. Coordinators take turns; the broker aborts it after `timeout_ms`.

        Raises:
            TidewireError: no transaction could be begun in time.
        """
        return await self._network.persistently(partial(self._new, timeout_ms), "beginning a transaction")

    async def _new(self, timeout_ms: int) -> tuple[int, int]:
        leaders = await self._known_leaders()
        coordinator = sorted(leaders)[next(self._turn) % len(leaders)]
        begin = partial(commands.new_txn, tc_id=coordinator, timeout_ms=timeout_ms)
        answer = await self._ask(coordinator, begin, pb.CommandNewTxnResponse)
        return transaction_of(answer, coordinator)

    async def include(self, transaction_id: tuple[int, int], topic: str) -> None:
        """Announce that the transaction will write to the topic or segment.

        Raises:
            TidewireError: it was refused, or no coordinator answered in time.
        """

        async def announce() -> None:
            await self._ask(
                transaction_id[0],
                partial(commands.add_partition_to_txn, txn=transaction_id, partitions=[topic]),
                pb.CommandAddPartitionToTxnResponse,
            )

        await self._network.persistently(announce, f"adding {topic} to transaction {transaction_id}")

    async def include_subscription(self, transaction_id: tuple[int, int], topic: str, subscription: str) -> None:
        """Announce that the transaction will acknowledge on a subscription of the topic or segment.

        Raises:
            TidewireError: it was refused, or no coordinator answered in time.
        """

        async def announce() -> None:
            await self._ask(
                transaction_id[0],
                partial(commands.add_subscription_to_txn, txn=transaction_id, subscriptions=[(topic, subscription)]),
                pb.CommandAddSubscriptionToTxnResponse,
            )

        await self._network.persistently(announce, f"adding {subscription} of {topic} to transaction {transaction_id}")

    async def end(self, transaction_id: tuple[int, int], *, commit: bool) -> None:
        """Commit or abort; returns when the outcome is durable. It retries an unanswered request, with the same id.

        Raises:
            TransactionConflict: it was decided otherwise before, by its timeout for instance.
            TransactionNotFound: there is no such transaction.
            OutcomeUnknown: the request was sent and not answered in time.
            OperationTimedOut: the request could not be sent in time, so it had no effect.
        """
        ending = Ending(transaction_id, commit=commit)
        seconds = self._network.settings.operation_timeout_seconds
        backoff = self._network.backoff()
        try:
            with anyio.fail_after(seconds):
                while True:
                    try:
                        await self._ask(transaction_id[0], ending.ask, pb.CommandEndTxnResponse)
                    except TidewireError as error:
                        ending.failed(error)
                        self._network.troubles.met(ending, error)
                        if isinstance(error, BrokerBusy):
                            # The coordinator may have another leader now.
                            self._introduced.pop(transaction_id[0], None)
                    else:
                        return
                    await backoff.wait()
        except TimeoutError as error:
            raise ending.out_of_time(seconds) from (ending.last or error)
        finally:
            self._network.troubles.over(ending)

    # ---------------------------------------------------------------------------------------------- asking the leaders

    async def _ask(self, coordinator: int, make: Callable[[int], pb.BaseCommand], expected: type[_Answer]) -> _Answer:
        """The leader's answer to a request.

        Raises:
            ConnectionLost: the coordinator got another leader meanwhile, or as `Connection.request`.
            TidewireError: it was refused, or there is no leader, or it did not answer.
        """
        url = (await self._known_leaders()).get(coordinator)
        if url is None:
            raise ConnectFailed(f"no broker serves transaction coordinator {coordinator} at the moment")
        asking = _Asking(coordinator, url, anyio.CancelScope())
        self._asking.add(asking)
        try:
            with asking.scope:
                return await (await self._connection(coordinator, url)).request(make, expected)
        finally:
            self._asking.remove(asking)
        raise ConnectionLost(f"transaction coordinator {coordinator} moved before {url} answered")

    async def _connection(self, coordinator: int, url: str) -> Connection:
        what = f"transaction coordinator {coordinator}"
        connection = await self._network.connection_to(url, self._network.service_address, what)
        if self._introduced.get(coordinator) is not connection:
            await connection.request(
                partial(commands.tc_client_connect, tc_id=coordinator), pb.CommandTcClientConnectResponse
            )
            self._introduced[coordinator] = connection
        return connection

    # ------------------------------------------------------------------------------------------- finding the leaders

    async def _known_leaders(self) -> dict[int, str]:
        if not self._is_watching:
            self._is_watching = True
            self._failure = None
            self._network.start(self._watch_until_refused(), "watch of transaction coordinators", self._fail)
        while not self._leaders:
            if self._failure is not None:
                raise fresh(self._failure)
            await self._changed.wait()
        return self._leaders

    async def _watch_until_refused(self) -> None:
        try:
            while True:
                try:
                    await self._watch()
                except TRANSIENT as error:
                    _log.info("the watch of transaction coordinators ended: %s", error)
                await self._backoff.wait()
        except TidewireError as error:
            self._fail(error)
        finally:
            # The next transaction tries again.
            self._is_watching = False

    def _fail(self, error: TidewireError) -> None:
        self._failure = error
        self._leaders = {}
        self._changed.notify()

    async def _watch(self) -> None:
        connection = await self._network.service()
        require_transactions(connection)
        self._end = None
        watch_id = connection.attach(Kind.COORDINATORS, self)
        try:
            connection.write(encode_command(commands.watch_tc_assignments(watch_id)))
            while self._end is None:
                await self._ended.wait()
            raise fresh(self._end)
        finally:
            connection.detach(Kind.COORDINATORS, watch_id)
            connection.write(encode_command(commands.watch_tc_assignments_close(watch_id)))

    def received(self, command: pb.BaseCommand, payload: bytes | None) -> None:
        """See `Listener`."""
        assert payload is None
        update = command.watch_tc_assignments_update
        if update.HasField("error"):
            self._finish(refusal(update.error, update.message))
        elif update.HasField("snapshot"):
            self._backoff.reset()
            self._leaders = leaders_of(update)
            self._changed.notify()
            for asking in self._asking:
                if self._leaders.get(asking.coordinator, asking.url) != asking.url:
                    asking.scope.cancel()

    def connection_lost(self, error: TidewireError) -> None:
        """See `Listener`."""
        self._finish(error)

    def _finish(self, error: TidewireError) -> None:
        self._end = error
        self._ended.set()
