"""Attacks through the environment: a process that is killed or stopped, too few descriptors, a full disk, no etcd.

After each attack the broker is killed (kill -9) and started again. It must still keep its promises.
"""

import os
import signal
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

import trio

from tests.support.attacks import wire
from tests.support.attacks.attacker import Attacker
from tests.support.attacks.outside_witness import OutsideWitness
from tests.support.attacks.siege import FLAGS, AnyWitness, Attack, Verdict, besiege, judge_after_kill
from tests.support.attacks.witness import Witness
from tests.support.etcd import running_etcd
from tests.support.processes import BROKER_COMMAND, RunningBroker, running_broker
from tests.support.small_disk import enlarge, small_disk, space_taken
from tests.support.wire import message
from tidewire.cli.local_etcd import EtcdProcess
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

KILLS: Final = 3
STOPPED_SECONDS: Final = 2
DISK_BYTES: Final = 128 * 1024 * 1024
FULL_SECONDS: Final = 3
LARGE_BYTES: Final = 200_000
AWAY_SECONDS: Final = 14
"""Longer than the broker's session in etcd."""
DESCRIPTORS: Final = 700
"""A few more than a broker needs; with fewer it refuses to start."""


def killed(folder: Path, seed: int, seconds: float) -> Verdict:
    """Kill -9 in the middle of a flood, several times."""
    verdict = Verdict("environment.killed")
    with running_broker(folder / "data", *FLAGS) as broker:
        witnesses: list[AnyWitness] = []
        trio.run(_kill_and_judge, broker, seed, seconds, verdict, witnesses)
        return _and_after_kill(broker, verdict, witnesses)


async def _kill_and_judge(
    broker: RunningBroker, seed: int, seconds: float, verdict: Verdict, witnesses: list[AnyWitness]
) -> None:
    start = trio.current_time()
    witness = Witness(broker.service_url, broker.http_url, "witness", seed)
    outside = OutsideWitness(broker.service_url, "witness")
    witnesses += [witness, outside]
    await witness.prepare()
    async with witness.at_work(), outside.at_work():
        for number in range(KILLS):
            attacker = Attacker(broker.pulsar, broker.http, Random(f"{seed}/{number}"), seconds / KILLS)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wire.flooding_producers, attacker)
                await trio.sleep(attacker.chance.uniform(0.2, 1) * seconds / KILLS)
                await trio.to_thread.run_sync(broker.restart)
                nursery.cancel_scope.cancel()
    for judging in witnesses:
        await judging.judge()
        verdict.complaints += judging.complaints
    verdict.seconds = trio.current_time() - start
    verdict.did = f"{KILLS} kills, the witnesses were owed {witness.steps} and {outside.steps}"


def stopped(folder: Path, seed: int, seconds: float) -> Verdict:
    """Alternate SIGSTOP and SIGCONT during a flood of requests."""

    async def run(broker: RunningBroker, attacker: Attacker) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.storm, attacker)
            while attacker.goes_on():
                await _stand_still(broker.pid, STOPPED_SECONDS)
                attacker.counts["stops"] += 1
                await trio.sleep(STOPPED_SECONDS / 4)

    with running_broker(folder / "data", *FLAGS) as broker:
        return _besiege_and_kill(broker, Attack("environment.stopped", partial(run, broker)), seed, seconds)


def descriptors(folder: Path, seed: int, seconds: float) -> Verdict:
    """Connect more clients than there are descriptors."""

    async def run(attacker: Attacker) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.half_open, attacker)
            nursery.start_soon(wire.storm, attacker)

    command = ("prlimit", f"--nofile={DESCRIPTORS}", *BROKER_COMMAND)
    with running_broker(folder / "data", *FLAGS, command=command) as broker:
        return _besiege_and_kill(broker, Attack("environment.descriptors", run), seed, seconds)


def full_disk(folder: Path, seed: int, seconds: float) -> Verdict:
    """Fill the disk and free it again repeatedly, during a flood of requests and large sends."""

    async def send(attacker: Attacker, _chance: Random) -> None:
        async with attacker.client() as client:
            await client.produce(1, "persistent://public/default/nobody-reads")
            for number in count():
                # These are so many bytes that the journal needs its next file while the disk is full.
                await client.send_payload(commands.send(1, number), message(bytes(LARGE_BYTES)))
                if (await client.receive()).type != pb.BaseCommand.SEND_RECEIPT:
                    attacker.counts["sends refused"] += 1
                    return

    async def run(disk: Path, attacker: Attacker) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.storm, attacker)
            nursery.start_soon(attacker.in_parallel, 2, send)
            while attacker.goes_on():
                with space_taken(disk):
                    await trio.sleep(FULL_SECONDS)
                attacker.counts["times full"] += 1
                await trio.sleep(FULL_SECONDS / 2)
            # The sends may have filled the disk. Then the witnesses would wait, and a new process would not start.
            enlarge(disk, 3 * DISK_BYTES)

    with small_disk(folder, DISK_BYTES) as disk, running_broker(disk / "data", *FLAGS) as broker:
        attack = Attack("environment.full-disk", partial(run, disk), said="the disk is full")
        return _besiege_and_kill(broker, attack, seed, seconds)


def no_etcd(folder: Path, seed: int, seconds: float) -> Verdict:
    """Stop etcd for longer than the broker's session lasts, during a flood of requests."""

    async def run(etcd: EtcdProcess, attacker: Attacker) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.storm, attacker)
            while attacker.goes_on():
                await _stand_still(etcd.pid, AWAY_SECONDS)
                attacker.counts["times away"] += 1
                await trio.sleep(AWAY_SECONDS)

    with (
        running_etcd(folder / "etcd") as etcd,
        running_broker(folder / "data", "--metadata", f"etcd://{etcd.endpoint}", *FLAGS) as broker,
    ):
        return _besiege_and_kill(broker, Attack("environment.no-etcd", partial(run, etcd)), seed, seconds)


async def _stand_still(pid: int, seconds: float) -> None:
    """Stop a process for `seconds`. It continues also if the caller is cancelled."""
    os.kill(pid, signal.SIGSTOP)
    try:
        await trio.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


def _besiege_and_kill(broker: RunningBroker, attack: Attack, seed: int, seconds: float) -> Verdict:
    witnesses: list[AnyWitness] = []
    verdict = trio.run(besiege, broker, attack, seed, seconds, witnesses)
    return _and_after_kill(broker, verdict, witnesses)


def _and_after_kill(broker: RunningBroker, verdict: Verdict, witnesses: list[AnyWitness]) -> Verdict:
    """Return the attack's verdict, with what is found after the broker was killed."""
    after = judge_after_kill(broker, witnesses)
    verdict.complaints += [f"after kill -9: {complaint}" for complaint in after.complaints]
    verdict.notes.append(f"and after kill -9 {after.did}")
    verdict.seconds += after.seconds
    return verdict


ATTACKS: Final[dict[str, Callable[[Path, int, float], Verdict]]] = {
    "environment.killed": killed,
    "environment.stopped": stopped,
    "environment.descriptors": descriptors,
    "environment.full-disk": full_disk,
    "environment.no-etcd": no_etcd,
}
