"""A broker on a simulated machine: the daemon's real rooms; the disk forgets, and the clock jumps.

Only three things differ from the daemon: the disk (`tests.support.disk`), the clock, which is Trio's, and the clients'
streams, which are in memory. The bytes that a broker writes to a connection reach the client at once, so clients learn
things in the order in which the broker says them.

The power may be lost at any disk operation (`lose_power_after`). `crash`, `kill` and `stop` end the broker by a power
loss, by killing the process, or as an operator does. `start` begins the next one on the remaining disk.
"""

from collections.abc import Callable

import trio

from broker.broker import Broker, Foundation
from broker.budgets import Budgets
from broker.config import BrokerSettings, load_settings
from broker.front_ends import ENTRY_CODECS
from broker.kafka.markers import MARKERS
from broker.pulsar.listener import PulsarServices, open_session
from broker.pulsar.unsupported import Peer
from storage.metadata.embedded import EmbeddedStore
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import DATA, ledger_store

EPOCH_MS = 1_700_000_000_000
RETENTION_SECONDS = 10
LEDGER_SECONDS = 40
SERVICE_URL = "pulsar://127.0.0.1:6650"
PRUNING_SECONDS = 20


def settings_of(*, prunes: bool) -> BrokerSettings:
    """Return the settings of a story's broker: hours become seconds."""
    flags: dict[str, object] = {
        "transaction_coordinators": 1,
        "txn_retention_seconds": RETENTION_SECONDS,
        "ledger_age_seconds_max": LEDGER_SECONDS,
        # Consumers that vanish do not come back by their names here.
        "consumer_session_grace_seconds": 0,
    }
    if prunes:
        flags["segment_retention_seconds"] = PRUNING_SECONDS
    return load_settings(flags)


KEEPING, PRUNING = settings_of(prunes=False), settings_of(prunes=True)


def now_ms() -> int:
    """The wall clock of the simulated machine."""
    return EPOCH_MS + round(trio.current_time() * 1000)


class Line(trio.abc.Stream):
    """The broker's end of a connection to a client that gets everything at once."""

    def __init__(self, hear: Callable[[bytes], None], over: Callable[[], None]) -> None:
        self._hear = hear
        self._over = over
        self._said = bytearray()
        self._wake = trio.Event()
        self.is_open = True

    def say(self, data: bytes) -> None:
        """Send the client's bytes; they are lost when the connection is over."""
        self._said += data
        self._wake.set()

    def hang_up(self) -> None:
        """Close the client's end without a command."""
        self.is_open = False
        self._wake.set()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while self.is_open and not self._said:
            self._wake = trio.Event()
            await self._wake.wait()
        await trio.lowlevel.checkpoint()
        if not self.is_open:
            return b""
        taken = bytes(self._said[:max_bytes])
        del self._said[:max_bytes]
        return taken

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        if not self.is_open:
            raise trio.BrokenResourceError
        self._hear(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        if self.is_open:
            self.is_open = False
            self._over()
        await trio.lowlevel.checkpoint()


class Machine:
    """See the module's docstring. `nursery` runs what is on it."""

    def __init__(self, seed: int, nursery: trio.Nursery, *, prunes: bool) -> None:
        self._settings = PRUNING if prunes else KEEPING
        self._files = SimulatedFiles(seed=seed)
        self._outside = nursery
        self._scope = trio.CancelScope()
        self._over = trio.Event()
        self._over.set()
        self._asked_to_stop = trio.Event()
        self._power_lost_at: int | None = None
        self._broker: Broker | None = None
        self._nursery: trio.Nursery | None = None
        self.metadata: EmbeddedStore | None = None

    @property
    def is_running(self) -> bool:
        return self._broker is not None and not self._over.is_set()

    @property
    def has_lost_power(self) -> bool:
        return self._power_lost_at is not None and self._files.operations > self._power_lost_at

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "the broker is running"
        return self._broker

    async def start(self) -> bool:
        """Start a broker. Return whether it came up; if not, the power was lost meanwhile."""
        ready = trio.Event()
        self._over, self._scope, self._asked_to_stop = trio.Event(), trio.CancelScope(), trio.Event()
        self._outside.start_soon(self._run, ready, self._over)
        await ready.wait()
        return self.is_running

    async def stop(self) -> None:
        """Stop the broker as an operator does."""
        self._asked_to_stop.set()
        await self._over.wait()

    async def kill(self) -> None:
        """End the process; the system writes the bytes that it got."""
        await self._end(self._files.kill())

    async def crash(self) -> None:
        """Lose the power and all unsynced writes."""
        await self._end(self._files.crash())

    def lose_power_after(self, operations: int) -> None:
        """Let the disk refuse everything after this many operations."""
        if self._power_lost_at is None:
            self._power_lost_at = self._files.operations + operations
            self._files.lose_power_after(operations)

    def connect(self, hear: Callable[[bytes], None], over: Callable[[], None]) -> Line:
        """Open a new connection to the running broker."""
        line = Line(hear, over)
        assert self._nursery is not None, "the broker is running"
        self._nursery.start_soon(self._attend, line)
        return line

    def do(self, call: Callable[[], object]) -> None:
        """Run a task that ends with the broker."""
        assert self._nursery is not None, "the broker is running"
        self._nursery.start_soon(call)  # type: ignore[arg-type]

    async def _end(self, survivor: SimulatedFiles) -> None:
        # What the dying broker still does, it does on a disk that nobody sees again.
        self._files, self._power_lost_at = survivor, None
        self._scope.cancel()
        await self._over.wait()

    async def _attend(self, line: Line) -> None:
        async with trio.open_nursery() as nursery:
            services = PulsarServices.of(self.broker)
            await open_session(line, Peer("a story"), services, SERVICE_URL, nursery).run()
            nursery.cancel_scope.cancel()

    async def _run(self, ready: trio.Event, over: trio.Event) -> None:
        files = self._files
        try:
            with self._scope:
                async with (
                    EmbeddedStore.open(files, DATA) as metadata,
                    ledger_store(files, metadata=metadata) as ledgers,
                    trio.open_nursery() as nursery,
                ):
                    self.metadata, self._nursery = metadata, nursery
                    session = await metadata.open_session(self._settings.session_timeout_seconds)
                    foundation = Foundation(
                        settings=self._settings,
                        version="model",
                        service_url=SERVICE_URL,
                        metadata=metadata,
                        files=files,
                        ledgers=ledgers,
                        now_ms=now_ms,
                        budgets=Budgets.of(1 << 30, 1_000),
                        markers=MARKERS,
                        codecs=ENTRY_CODECS,
                    )
                    started = Broker(foundation, session, nursery)
                    await started.start()
                    self._broker = started
                    ready.set()
                    await self._asked_to_stop.wait()
                    await started.close()
                    nursery.cancel_scope.cancel()
        except* Exception:
            # A broker may end by itself when the disk fails, and for no other reason.
            if not (files is self._files and self.has_lost_power) and not self._scope.cancel_called:
                raise
        finally:
            self._broker = self._nursery = self.metadata = None
            over.set()
            ready.set()
