"""A bad day from its begin to its end: processes, clients, acts, healing, and the judgement.

    report = await run(folder, Store.ETCD, acts, seed=7)

The steps: start everything, and wait for each witness's first promise. Perform the acts. Then nothing is faulty any
more, and everything must heal within a bound. The witnesses end their work and judge what they saw. At last all brokers
are killed at once and started again, and new readers must see the same.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from traceback import format_exception
from typing import Final

import trio

from tests.support.admin import Admin
from tests.support.chaos.acts import BROKERS, Act, Store
from tests.support.chaos.cluster import Cluster, running
from tests.support.chaos.java import Java
from tests.support.chaos.kafka import Kafka
from tests.support.chaos.logbook import Logbook
from tests.support.chaos.ours import Ours
from tests.support.chaos.outside import InOrder, Sharing
from tests.support.chaos.performing import Performing
from tests.support.chaos.registers import Registers
from tests.support.chaos.spark import Spark
from tests.support.chaos.witnesses import Witness
from tests.support.layout_changes import SegmentView, layout_path, segments_in

SEGMENTS: Final = 3
"""Of each scalable topic, at first."""
OPEN_SECONDS_MAX: Final = 300.0
"""From the start of a witness to its first promise. Spark takes the longest."""
READ_SHARE: Final = 0.5
"""How much longer a witness may take to end its work, and to read everything again, for each second of the day."""
WELL_SECONDS_MAX: Final = 60.0
"""From the end of the witnesses' work until the doctor finds nothing."""

Calls = Callable[[Witness], Awaitable[None]]

LEFT_BY_CRASHES: Final = frozenset({"files-without-record"})
"""Findings that are no fault: a broker that dies between a ledger's file and its record leaves an empty file."""
LEFT_BY_WITNESSES: Final = frozenset({"subscription-unread"})
"""Findings that are no fault of the cluster: a witness that has ended reads no more."""


@dataclass
class Report:
    """The result of a run."""

    acts: Counter[str] = field(default_factory=Counter)
    """By kind, those that began."""
    complaints: list[str] = field(default_factory=list)
    summaries: dict[str, str] = field(default_factory=dict)
    """By witness, what it did."""
    healed_seconds: float = 0.0


async def run(
    folder: Path,
    store: Store,
    acts: Sequence[Act],
    *,
    seed: int,
    with_java: bool = True,
    with_spark: bool = True,
    prints: bool = False,
) -> Report:
    """Run a day with its files in `folder`, which must be empty. Complaints are in the report.

    Raises:
        BrokerFailure: a broker did not start, or did not stop in time.
    """
    logbook = Logbook(folder / "chaos.log", prints=prints)
    witnesses: list[Witness] = [
        Ours("chaos-stream", seed, ordered=True),
        Ours("chaos-queue", seed + 1, ordered=False),
        InOrder(),
        Sharing(),
        Kafka(seed),
        Registers(folder, seed),
    ]
    if with_java:
        witnesses.append(Java(folder, seed))
    if with_spark:
        witnesses.append(Spark(folder, seed + 2))
    async with running(folder, store, logbook) as cluster:
        return await _Day(cluster, logbook, witnesses).run(acts)


class _Day:
    def __init__(self, cluster: Cluster, logbook: Logbook, witnesses: Sequence[Witness]) -> None:
        self._cluster = cluster
        self._logbook = logbook
        self._witnesses = witnesses
        self._report = Report()

    async def run(self, acts: Sequence[Act]) -> Report:
        scalable = [topic for witness in self._witnesses for topic in witness.scalable]
        regular = [topic for witness in self._witnesses for topic in witness.regular]
        admin = Admin(self._cluster.brokers[BROKERS[0]].http_url)
        for topic in scalable:
            await trio.to_thread.run_sync(admin.create, topic, SEGMENTS)
        performing = Performing(self._cluster, scalable, regular)
        with trio.CancelScope() as working:
            async with AsyncExitStack() as stack:
                for witness in self._witnesses:
                    self._cluster.on_death.append(witness.broker_died)
                    await witness.open(self._cluster, stack)
                nursery = await stack.enter_async_context(trio.open_nursery())
                for witness in self._witnesses:
                    witness.begin(nursery)
                if not await self._live(performing, acts):
                    # Clients would wait in vain for what they have sent.
                    working.cancel()
                nursery.cancel_scope.cancel()
        self._report.acts = performing.happenings.counts
        self._report.complaints = self._logbook.complaints
        self._report.summaries = {witness.name: witness.summary() for witness in self._witnesses}
        return self._report

    async def _live(self, performing: Performing, acts: Sequence[Act]) -> bool:
        """Return whether all witnesses came to their end."""
        if not await self._all(
            lambda witness: witness.goes_on(), lambda _witness: OPEN_SECONDS_MAX, "was not served at first"
        ):
            return False
        self._logbook.begin()
        self._logbook.say("all witnesses work; the day begins")
        begun = trio.current_time()
        await performing.perform(acts)
        day_seconds = trio.current_time() - begun
        await self._heal()

        def finishes_in(witness: Witness) -> float:
            return witness.finish_seconds_max + day_seconds * READ_SHARE

        if not await self._all(self._finish, finishes_in, "did not end its work"):
            return False
        await self._see_the_doctor()
        await self._begin_anew()
        return await self._all(self._read, finishes_in, "did not read everything again")

    async def _heal(self) -> None:
        self._logbook.say("the last act is over; everything must heal")
        begun = trio.current_time()
        await self._all(lambda witness: witness.goes_on(), lambda witness: witness.heal_seconds_max, "is not served")
        self._report.healed_seconds = trio.current_time() - begun
        self._logbook.say(f"every witness goes on after {self._report.healed_seconds:.1f} s")

    async def _see_the_doctor(self) -> None:
        """Complain of what the doctor still finds when there is no load any more."""
        begun = trio.current_time()
        found: set[str] | None = None
        with trio.move_on_after(WELL_SECONDS_MAX):
            while found is None or found:
                found = await self._findings()
        for finding in {"the doctor gives no answer"} if found is None else found:
            self._logbook.complain(f"without a load for {trio.current_time() - begun:.0f} s: {finding}")

    async def _findings(self) -> set[str] | None:
        """Return what the doctor finds; None if no broker answered."""
        answer = await self._cluster.ask_any("/admin/v2/cluster/doctor")
        if answer is None:
            return None
        report = answer.json
        states = {one["broker"]: one["state"] for one in report["brokers"]}
        faults = [one for one in report["findings"] if one["kind"] not in LEFT_BY_CRASHES | LEFT_BY_WITNESSES]
        found = {f"{one['kind']}: {one['about']}" for one in faults}
        found |= {f"the doctor cannot look at {what}" for what in report["notLooked"]}
        if states != dict.fromkeys(BROKERS, "running"):
            found.add(f"not all brokers take part: {states}")
        if found:
            self._logbook.say(f"the doctor finds {sorted(found)}")
        return found

    async def _begin_anew(self) -> None:
        """Kill all brokers at once, and start them again."""
        for name in BROKERS:
            await self._cluster.kill(name)
        await self._cluster.start(*BROKERS)
        self._logbook.say("all brokers were killed and run again")

    # ------------------------------------------------------------------------------------------------- all witnesses

    async def _finish(self, witness: Witness) -> None:
        self._hear(witness, await witness.finish(self._segments))

    async def _read(self, witness: Witness) -> None:
        self._hear(witness, await witness.read_again(self._cluster.url()))

    def _hear(self, witness: Witness, complaints: Sequence[str]) -> None:
        for complaint in complaints:
            self._logbook.complain(f"{witness.name}: {complaint}")

    async def _all(self, calls: Calls, seconds_max: Callable[[Witness], float], complaint: str) -> bool:
        """Let all witnesses do it at the same time. Complain of each one that is not done in its time.

        Return whether all are done.
        """
        late: list[str] = []

        async def call(witness: Witness) -> None:
            limit = seconds_max(witness)
            with trio.move_on_after(limit) as waiting:
                try:
                    await calls(witness)
                except Exception as failure:
                    late.append(witness.name)
                    self._logbook.complain(f"{witness.name} failed:\n{''.join(format_exception(failure))}")
            if waiting.cancelled_caught:
                late.append(witness.name)
                self._logbook.complain(
                    f"{witness.name} {complaint} within {limit:.0f} s; it waits for {witness.waits_for()}"
                )

        async with trio.open_nursery() as nursery:
            for witness in self._witnesses:
                nursery.start_soon(call, witness)
        return not late

    async def _segments(self, topic: str) -> list[SegmentView]:
        answer = None
        while answer is None:
            answer = await self._cluster.ask_any(layout_path(topic))
        return [view for view in segments_in(answer.json) if view.is_active]
