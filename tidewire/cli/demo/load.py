"""Streams the transactions into the topic, splits the topic meanwhile, and kills a broker halfway.

A producer that must not lose or duplicate anything needs only this. `run_transaction` runs a transaction again when one
of its sends was not acknowledged. It retries an unanswered commit with the same transaction id. The load counts only
acknowledged sends, so a reader of uncommitted data would find at least that many.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import anyio
import anyio.to_thread

import tidewire
from tidewire.cli.administration import Administration
from tidewire.cli.asking import NotAccepted
from tidewire.cli.demo.data import AircraftDay
from tidewire.cli.endings import CommandFailed

TRANSACTIONS_OPEN_MAX: Final = 64
"""Most transactions in flight."""

SPLIT_EVERY_MAX: Final = 4000
SPLITS_MIN: Final = 3
"""The topic splits after at most SPLIT_EVERY_MAX transactions, and in a short load at least SPLITS_MIN times."""

SEGMENTS_AT_START: Final = 2


class Serving(Protocol):
    """What serves the topic: a broker (`process.BrokerProcess`), or several (`cluster.Cluster`). Methods block."""

    data_dir: Path
    """Where it keeps its data."""

    @property
    def survives(self) -> bool:
        """Whether other brokers go on while one is away."""

    @property
    def service_url(self) -> str:
        """The URL for clients."""

    @property
    def http_addresses(self) -> Sequence[str]:
        """The addresses for administration."""

    def crash(self) -> str:
        """Kill a broker as a crash would. Return the beginning of a sentence that tells the user so."""

    def wait_given_up(self) -> None:
        """Return when the killed broker owns nothing any more, so that others may."""

    def restart(self) -> None:
        """Start the killed broker again. It is ready on return."""

    def check_running(self) -> None:
        """Raise `CommandFailed` if a broker has ended by itself, and clients cannot go on."""


@dataclass
class Tally:
    """What has happened so far, as the producer knows it."""

    committed: int = 0
    open: int = 0
    """Transactions begun and not ended."""
    aborted: int = 0
    """Transactions aborted on purpose after their sends."""
    rerun: int = 0
    """Attempts that failed, for example because of the kill, and were aborted and run again."""
    splits: int = 0
    events_sent: int = 0
    departures_sent: int = 0
    """Departures that the broker acknowledged, in committed and aborted transactions."""
    killed_after: int = 0
    """Commits before the kill."""
    killed_open: int = 0
    """Transactions that were open at the kill."""
    away_seconds: float = 0.0
    """From the kill until the broker was ready again, or others had taken over."""
    seconds: float = 0.0
    """The duration of the whole load."""


class Load:
    """Sends all transactions and commits each once. Call `run` once."""

    def __init__(
        self,
        serving: Serving,
        topic: str,
        days: Iterator[AircraftDay],
        total: int,
        *,
        say: Callable[[str], None],
        show_progress: Callable[[int], None],
    ) -> None:
        """Take `total` transactions from `days`; `say` prints a line, `show_progress` gets the number committed."""
        self.tally = Tally()
        self._serving = serving
        self._topic = topic
        self._days = days
        self._split_every = max(1, min(SPLIT_EVERY_MAX, total // (SPLITS_MIN + 1)))
        self._total = total
        # The commands that choose and kill a broker take some seconds. The load goes on meanwhile, up to the half.
        self._kill_after = total * 3 // 8 if serving.survives else total // 2
        self._killed = anyio.Event()
        self._say = say
        self._show_progress = show_progress
        # Held by one split, or by the kill and restart.
        self._changing = anyio.Lock()

    async def run(self) -> Tally:
        """Create the topic, send everything, and return the tally.

        Raises:
            CommandFailed: an error remained that a retried transaction does not cure.
        """
        try:
            administration = Administration(*self._serving.http_addresses)
            await self._create_topic(administration)
            started = time.perf_counter()
            async with (
                tidewire.connect(self._serving.service_url) as client,
                client.producer(self._topic) as producer,
                anyio.create_task_group() as workers,
            ):
                for _ in range(TRANSACTIONS_OPEN_MAX):
                    workers.start_soon(self._work, client, producer, administration)
        except (BaseExceptionGroup, CommandFailed, tidewire.TidewireError) as error:
            raise self._told(error) from error
        self.tally.seconds = time.perf_counter() - started
        return self.tally

    async def _create_topic(self, administration: Administration) -> None:
        try:
            await anyio.to_thread.run_sync(partial(administration.create, self._topic, segments=SEGMENTS_AT_START))
        except NotAccepted as refusal:
            raise CommandFailed(
                f"The demo cannot create its topic: {str(refusal).rstrip('.')}. It needs a new broker. Use another "
                f"--data-dir than {self._serving.data_dir}."
            ) from refusal

    async def _work(self, client: tidewire.Client, producer: tidewire.Producer, administration: Administration) -> None:
        # All workers share the iterator. Each takes the next transaction when it has finished one.
        for day in self._days:
            if day.is_aborted_first:
                await self._send_and_abort(client, producer, day)
            await self._send_and_commit(client, producer, day)
            self.tally.committed += 1
            committed = self.tally.committed
            self._show_progress(committed)
            # No split near the end, where fewer transactions are in flight.
            if committed % self._split_every == 0 and committed + TRANSACTIONS_OPEN_MAX <= self._total:
                async with self._changing:
                    await self._split(administration)
            if committed == self._kill_after:
                async with self._changing:
                    await self._kill()
                if self._serving.survives:
                    await anyio.to_thread.run_sync(self._serving.restart)

    # ---------------------------------------------------------------------------------------------------- transactions

    async def _send_and_commit(self, client: tidewire.Client, producer: tidewire.Producer, day: AircraftDay) -> None:
        attempts: list[tidewire.Transaction] = []

        async def work(txn: tidewire.Transaction) -> None:
            attempts.append(txn)
            await self._send(producer, txn, day)
            if self.tally.committed > self._total // 2:
                await self._killed.wait()

        self.tally.open += 1
        await client.run_transaction(work)
        self.tally.open -= 1
        failed = attempts[:-1]
        self.tally.rerun += len(failed)
        for txn in failed:
            # An attempt that could not be aborted while the broker was down would block readers until its timeout.
            await txn.abort()

    async def _send_and_abort(self, client: tidewire.Client, producer: tidewire.Producer, day: AircraftDay) -> None:
        self.tally.open += 1
        txn = await client.new_transaction()
        try:
            await self._send(producer, txn, day)
        except tidewire.TidewireError as error:
            if not error.retriable:
                raise
            # The transaction is aborted anyway.
        await txn.abort()
        self.tally.open -= 1
        self.tally.aborted += 1

    async def _send(self, producer: tidewire.Producer, txn: tidewire.Transaction, day: AircraftDay) -> None:
        receipts = [
            await producer.enqueue(event.value, key=event.airport, event_time_ms=event.time_ms, txn=txn)
            for event in day.events
        ]
        failure: tidewire.TidewireError | None = None
        for event, receipt in zip(day.events, receipts, strict=True):
            try:
                await receipt
            except tidewire.TidewireError as error:
                failure = failure or error
            else:
                self.tally.events_sent += 1
                self.tally.departures_sent += event.kind == "departed"
        if failure is not None:
            raise failure

    # --------------------------------------------------------------------------------------------------------- changes

    async def _split(self, administration: Administration) -> None:
        layout = await anyio.to_thread.run_sync(administration.layout, self._topic)
        active = [segment for segment in layout["segments"].values() if segment["active"]]
        widest = max(active, key=lambda segment: segment["hashRange"]["end"] - segment["hashRange"]["start"])
        opened = self.tally.open
        await anyio.to_thread.run_sync(administration.split, self._topic, widest["segmentId"])
        self.tally.splits += 1
        self._say(f"split segment {widest['segmentId']} with {opened} transactions open")

    async def _kill(self) -> None:
        """Kill a broker, and return when the load goes on."""
        tally, started = self.tally, time.perf_counter()
        killed = await anyio.to_thread.run_sync(self._serving.crash)
        self._killed.set()
        tally.killed_after, tally.killed_open = tally.committed, tally.open
        if not self._serving.survives:
            await anyio.to_thread.run_sync(self._serving.restart)
            tally.away_seconds = time.perf_counter() - started
            self._say(
                f"{killed} with {tally.killed_open} transactions open; ready again after {tally.away_seconds:.1f} s"
            )
            return
        started = time.perf_counter()
        self._say(f"{killed} with {tally.killed_open} transactions open")
        await anyio.to_thread.run_sync(self._serving.wait_given_up)
        tally.away_seconds = time.perf_counter() - started
        self._say(f"the others took over: all of its claims had ended {tally.away_seconds:.1f} s later")

    def _told(self, error: BaseException) -> BaseException:
        """Return the error to raise for the one that ended the load, as a message for the user if possible."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if not isinstance(error, CommandFailed | tidewire.TidewireError):
            return error
        # If a broker's process has ended, that is the cause, whatever the client reports.
        self._serving.check_running()
        return CommandFailed(f"The load failed after {self.tally.committed:,} transactions: {str(error).rstrip('.')}.")
