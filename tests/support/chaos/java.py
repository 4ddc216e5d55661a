"""The unmodified Java v5 client: transactions and a stream consumer on a scalable topic.

The program (tests/interop/java-v5, ChaosClient) says each step on a line. This module writes the history from them.
"""

import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Final

import trio

import tidewire
from scripts.need import place
from tests.support.chaos.cluster import Cluster
from tests.support.chaos.witnesses import FINISH_SECONDS_MAX, HEAL_SECONDS_MAX, Segments, overdue
from tests.support.cluster_loads import KEEP_ALIVE_SECONDS, OPERATION_SECONDS
from tests.support.followers import Reading, follow
from tests.support.happenings import Happenings
from tests.support.history import Fate, History, Place, Read
from tests.support.java import QUICK_JAVA

WORKERS: Final = 3
PROGRAM: Final = "tidewire.interop.ChaosClient"
STOPPED: Final = "stopped"
COMMITTED: Final = "committed"
REOPENED: Final = "reopened"
GOES_ON_COMMITS: Final = 3
STALLED_SECONDS: Final = 60.0
"""The program opens its consumer again if it gets nothing for so long while messages are missing (docs/chaos.md)."""

_BEGUN: Final = {"beginning": "begin", "send": "send", "commit": "commit", "abort": "abort"}
"""Lines before a call, and the call's name."""
_ENDED: Final = frozenset({"begun", "not-begun", "sent", "not-sent", "committed", "aborted", "not-ended"})
"""Lines behind a call."""


class Steps:
    """The history of what the program says."""

    def __init__(self) -> None:
        self.history = History()
        self.happenings = Happenings()
        self.refusals: list[str] = []
        """Calls that failed, and why. Their outcome is in the history."""
        self.longest_seconds: dict[str, float] = {}
        self.reads: list[Read] = []
        self.more = trio.Event()
        """Set and replaced at each message that it got."""
        self.calls: dict[int, tuple[str, float]] = {}
        """By worker: the call that it makes, and since when."""
        self._workers: list[int] = []
        """By transaction."""

    def hear(self, line: str, now: float) -> None:
        """Take in the next line."""
        step, _, rest = line.partition(" ")
        if step in {"beginning", "begun", "not-begun"}:
            worker = int(rest.partition(" ")[0])
        elif step in _BEGUN or step in _ENDED:
            worker = self._workers[int(rest.partition(" ")[0])]
        else:
            worker = -1
        if step in _ENDED:
            call, since = self.calls.pop(worker)
            self.longest_seconds[call] = max(now - since, self.longest_seconds.get(call, 0.0))
        if step in _BEGUN:
            self.calls[worker] = _BEGUN[step], now
        self._note(step, rest, worker)
        self.happenings.note(step)

    def _note(self, step: str, rest: str, worker: int) -> None:
        history = self.history
        first, _, second = rest.partition(" ")
        if step == "begun":
            record = history.begin((0, len(history.transactions)))
            assert record.number == int(second), "both count alike"
            self._workers.append(worker)
        elif step == "send":
            history.send(history.transactions[int(first)], second)
        elif step == "commit":
            history.transactions[int(first)].fate = Fate.UNKNOWN
        elif step == "committed":
            history.transactions[int(first)].fate = Fate.COMMITTED
        elif step == "aborted":
            history.transactions[int(first)].fate = Fate.ABORTED
        elif step == "got":
            # The client shows no position that could be compared.
            self.reads.append(Read(Place(0, 0, len(self.reads), 0), first, second.encode()))
            self.more.set()
            self.more = trio.Event()
        elif step.startswith("not-"):
            self.refusals.append(f"{step} {rest}")


class Java:
    """See the module's docstring."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.name = "java"
        self._topic = "topic://public/default/chaos-java"
        self.scalable: Sequence[str] = (self._topic,)
        self.heal_seconds_max = HEAL_SECONDS_MAX
        self.finish_seconds_max = FINISH_SECONDS_MAX
        self.regular: Sequence[str] = ()
        self._steps = Steps()
        self._log = folder / "java.log"
        self._seed = seed
        self._process: trio.Process
        self._url = ""
        self._ends: set[bytes] = set()

    async def open(self, cluster: Cluster, stack: AsyncExitStack) -> None:
        """See `Witness.open`."""
        target = place("pulsar-java-client")
        self._url = cluster.url(1)
        command = ["java", *QUICK_JAVA, "-cp", f"{target}/classes:{target}/lib/*", PROGRAM]
        command += [self._url, self._topic, str(self._seed), str(WORKERS)]
        log = stack.enter_context(self._log.open("wb"))
        self._process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
        stack.push_async_callback(self._end)

    def begin(self, nursery: trio.Nursery) -> None:
        """See `Witness.begin`."""
        nursery.start_soon(self._listen)

    async def _end(self) -> None:
        self._process.kill()
        with trio.CancelScope(shield=True):
            await self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None, "both are pipes"
                await stream.aclose()

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in _lines(self._process.stdout):
            self._steps.hear(line, trio.current_time())

    def broker_died(self, random: Random) -> None:
        """See `Witness.broker_died`. It gives up nothing."""

    async def goes_on(self) -> None:
        """See `Witness.goes_on`."""
        await self._steps.happenings.nth(COMMITTED, GOES_ON_COMMITS)

    async def finish(self, segments: Segments) -> list[str]:
        """See `Witness.finish`."""
        assert self._process.stdin is not None
        await self._process.stdin.send_all(b"stop\n")
        if not self._steps.happenings.counts[STOPPED]:
            await self._steps.happenings.nth(STOPPED, 1)
        await self._send_ends(segments)
        while self._ends - {read.value for read in self._steps.reads}:
            with trio.move_on_after(STALLED_SECONDS) as stalled:
                await self._steps.more.wait()
            if stalled.cancelled_caught:
                await self._process.stdin.send_all(b"reopen\n")
        await self._process.stdin.aclose()
        history = self._steps.history
        complaints = [f"its consumer: {text}" for text in history.judge_again(self._steps.reads)]
        return complaints + overdue(self._steps.longest_seconds, tuple(_BEGUN.values()))

    async def _send_ends(self, segments: Segments) -> None:
        """Send a last message to each segment, with our own client."""
        history = self._steps.history
        async with (
            tidewire.connect(self._url, operation_timeout_seconds=OPERATION_SECONDS) as client,
            client.producer(self._topic) as producer,
        ):
            handle = await client.new_transaction()
            record = history.begin(handle.transaction_id)
            for segment in await segments(self._topic):
                sent = history.send(record, segment.key())
                await producer.send(sent.value(), key=sent.key, txn=handle)
                self._ends.add(sent.value())
            await handle.commit()
            record.fate = Fate.COMMITTED

    def waits_for(self) -> str:
        """See `Witness.waits_for`."""
        left = self._ends - {read.value for read in self._steps.reads}
        return f"{self._steps.calls}, last messages {left}, the program ended with {self._process.returncode}"

    async def read_again(self, url: str) -> list[str]:
        """See `Witness.read_again`."""
        reading = Reading(f"new reader of {self._topic}")
        async with (
            tidewire.connect(url, keep_alive_seconds=KEEP_ALIVE_SECONDS) as client,
            client.reader(self._topic) as reader,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(follow, reader, reading)
            await reading.until_seen(self._ends)
            nursery.cancel_scope.cancel()
        return reading.complaints + self._steps.history.judge(reading.reads)

    def summary(self) -> str:
        """See `Witness.summary`."""
        history, longest = self._steps.history, self._steps.longest_seconds
        fates = ", ".join(f"{history.count(fate)} {fate.value}" for fate in Fate if history.count(fate))
        waits = ", ".join(f"{call} {seconds:.1f} s" for call, seconds in longest.items())
        refusals = self._steps.refusals
        last = f", the last one {refusals[-1]:.200}" if refusals else ""
        reopened = f"its consumer opened again {self._steps.happenings.counts[REOPENED]} times"
        told = f"{len(history.transactions)} transactions ({fates}); longest {waits}; {reopened}"
        return f"{told}; {len(refusals)} refusals{last}"


async def _lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[str]:
    rest = b""
    async for data in stream:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", errors="replace")
