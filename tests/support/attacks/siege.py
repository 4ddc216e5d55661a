"""Runs an attack and witnesses on a broker, and gives a verdict on both."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

import trio

from broker.config import BrokerSettings
from broker.layouts.autoscale_policy import AutoScalePolicy
from broker.topics import IDLE_SECONDS_MAX
from tests.support.attacks.attacker import Attacker
from tests.support.attacks.gauges import CLIENTS, TOPICS, gauges, settled
from tests.support.attacks.kafka_witness import KafkaWitness
from tests.support.attacks.measures import Held
from tests.support.attacks.outside_witness import OutsideWitness
from tests.support.attacks.witness import Unanswered, Witness
from tests.support.processes import RunningBroker

CLIENT_MEMORY_MIB: Final = 64
"""The brokers' `--client-memory-bytes-max` here."""
RESIDENT_MIB_MAX: Final = 200 + 3 * CLIENT_MEMORY_MIB + 100
"""An idle broker's memory, three times what clients may hold (it is copied when read and when encoded), and caches."""
UNLOADED_SECONDS_MAX: Final = AutoScalePolicy().merge_window_seconds + 3 * IDLE_SECONDS_MAX
"""After this time no unused topic is loaded. Before, the autoscaler merges cold segments, which loads them."""
LOG_LINES_PER_SECOND_MAX: Final = 110
"""`broker/log_limit.py` writes at most 50 lines of one event a second; an attack causes one or two kinds."""
LOG_LINES_MAX: Final = 300
"""Additional lines for attacks of any length."""

FLAGS: Final = (
    *("--client-memory-bytes-max", f"{CLIENT_MEMORY_MIB}MiB"),
    *("--ledger-bytes-max", "4MiB"),
    *("--journal-file-bytes-max", "16MiB"),
    "--deduplication",
)
"""Small files, so that many are created and removed; deduplication, so that resends are stored once."""

assert {"client_memory_bytes_max", "deduplication"} <= BrokerSettings.model_fields.keys()

Siege = Callable[[Attacker], Awaitable[None]]
"""An attack from outside. It runs until the attacker's time is over, and closes everything that it opened."""


AnyWitness = Witness | OutsideWitness | KafkaWitness
"""A client to which the broker owes what it promised."""


class Attack(NamedTuple):
    """A row of the table of attacks on a running broker."""

    name: str
    """`family.what`."""
    run: Siege
    said: str = "nothing"
    """The beginning of what the broker logs as an error, since its surroundings cause one."""


def together(family: str, attacks: Sequence[Attack]) -> Attack:
    """Make an attack that runs all of these at the same time."""

    async def run(attacker: Attacker) -> None:
        async with trio.open_nursery() as nursery:
            for attack in attacks:
                nursery.start_soon(attack.run, attacker)

    return Attack(f"{family}.together", run)


@dataclass
class Verdict:
    """The result of an attack."""

    name: str
    did: str = ""
    seconds: float = 0.0
    complaints: list[str] = field(default_factory=list)
    """Broken promises, each a sentence; empty when all were kept."""
    notes: list[str] = field(default_factory=list)
    """Measures; no verdict."""

    def line(self) -> str:
        """Return the result as text."""
        state = "FAILED" if self.complaints else "ok"
        said = "; ".join(filter(None, [self.did, *self.notes, *self.complaints]))
        return f"{self.name:28} {state:6} {self.seconds:6.1f} s  {said}"


async def besiege(
    broker: RunningBroker, attack: Attack, seed: int, seconds: float, witnesses: list[AnyWitness]
) -> Verdict:
    """Attack for this time, with two witnesses, or three if the broker serves Kafka's clients.

    Add them to `witnesses`, because later brokers owe them the same.
    """
    verdict = Verdict(attack.name)
    start = trio.current_time()
    name = f"witness-{len(witnesses)}"
    witness = Witness(broker.service_url, broker.http_url, name, seed)
    outside = OutsideWitness(broker.service_url, name)
    witnesses += [witness, outside]
    of_kafka = KafkaWitness(broker.kafka, f"{name}-kafka") if attack.name.startswith("kafka.") else None
    if of_kafka is not None:
        witnesses.append(of_kafka)
    await witness.prepare()
    held = Held(broker)
    held.begin()
    before = await gauges(broker.http_url)
    attacker = Attacker(broker.pulsar, broker.http, Random(f"{seed}/{attack.name}"), 0, broker.kafka)
    try:
        async with AsyncExitStack() as working:
            await working.enter_async_context(witness.at_work())
            await working.enter_async_context(outside.at_work())
            if of_kafka is not None:
                await working.enter_async_context(of_kafka.at_work())
            attacker.until = trio.current_time() + seconds
            await attack.run(attacker)
    except* Unanswered as hanging:
        verdict.complaints += map(str, hanging.exceptions)
    if held.is_alive():
        await witness.judge()
        await outside.judge()
        if of_kafka is not None:
            await of_kafka.judge()
        sockets = await held.settled()
        if sockets:
            verdict.complaints.append(f"{sockets} sockets are still open")
        if files := held.more_files():
            verdict.complaints.append(f"{files} more files are open, not counting ledgers")
        above = await settled(broker.http_url, before, CLIENTS)
        verdict.complaints += [
            f"all clients have left, but {more:g} {what} are still held" for what, more in above.items()
        ]
        if (peak_mib := held.peak_mib()) > RESIDENT_MIB_MAX:
            verdict.complaints.append(f"{peak_mib:.0f} MiB were resident; the bound is {RESIDENT_MIB_MAX}")
        verdict.notes.append(f"peak {peak_mib:.0f} MiB, {held.descriptors()} descriptors")
    else:
        verdict.complaints.append(f"the broker ended with status {broker.process.poll()}")
    verdict.seconds = trio.current_time() - start
    lines = held.log_lines()
    if len(lines) > LOG_LINES_MAX + LOG_LINES_PER_SECOND_MAX * verdict.seconds:
        verdict.complaints.append(f"{len(lines)} lines were logged")
    if defects := held.defects(besides=attack.said):
        verdict.complaints.append(f"{len(defects)} defects were logged, such as {defects[0][:300]!r}")
    verdict.complaints += attacker.complaints + witness.complaints + outside.complaints
    if of_kafka is not None:
        verdict.complaints += of_kafka.complaints
        verdict.notes.append(
            f"Kafka's witness was owed {of_kafka.steps}, and waited {of_kafka.longest_wait_seconds:.2f} s at most"
        )
    verdict.did = ", ".join(f"{count:,} {what}" for what, count in sorted(attacker.counts.items()))
    verdict.notes.append(
        f"{len(lines)} log lines, the witnesses were owed {witness.steps} and {outside.steps}, "
        f"the first waited {witness.longest_wait_seconds:.2f} s"
    )
    return verdict


async def judge_unloading(broker: RunningBroker) -> Verdict:
    """Check that no topic is loaded some time after all clients have left."""
    verdict = Verdict("all.left")
    start = trio.current_time()
    none = dict.fromkeys([*CLIENTS, *TOPICS], 0.0)
    above = await settled(broker.http_url, none, CLIENTS | TOPICS, seconds_max=UNLOADED_SECONDS_MAX)
    verdict.complaints += [f"nobody is connected, but there are {more:g} {what}" for what, more in above.items()]
    verdict.seconds = trio.current_time() - start
    verdict.did = "topics are unloaded, and nothing is held for clients"
    return verdict


def judge_after_kill(broker: RunningBroker, witnesses: Sequence[AnyWitness], name: str = "all.after-kill-9") -> Verdict:
    """Kill the broker (kill -9), restart it, and check all its promises to the witnesses; blocks."""
    broker.restart()
    return trio.run(_judge_again, broker, witnesses, Verdict(name))


async def _judge_again(broker: RunningBroker, witnesses: Sequence[AnyWitness], verdict: Verdict) -> Verdict:
    start = trio.current_time()
    for witness in witnesses:
        witness.restarted(broker.service_url, broker.http_url)
        before = len(witness.complaints)
        await witness.judge()
        verdict.complaints += witness.complaints[before:]
    verdict.seconds = trio.current_time() - start
    verdict.did = f"{sum(witness.steps for witness in witnesses):,} messages were owed to {len(witnesses)} witnesses"
    return verdict
