"""Attacks by the surroundings: a process that is killed or stopped, too few descriptors.

A full disk is a scenario of its own (tests/scenarios/test_full_disk.py).
"""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import trio

from tests.support.attacks import wire
from tests.support.attacks.enemy import Enemy
from tests.support.attacks.siege import FLAGS, Attack, Verdict, besiege
from tests.support.attacks.witness import Witness
from tests.support.processes import BROKER_COMMAND, RunningBroker, running_broker

KILLS: Final = 3
STOPPED_SECONDS: Final = 2
DESCRIPTORS: Final = 700
"""Few more than a broker insists on; with fewer it refuses to start."""


def killed(folder: Path, seed: int, seconds: float) -> Verdict:
    """Kill -9 in the middle of a flood, several times."""
    verdict = Verdict("environment.killed")
    with running_broker(folder / "data", *FLAGS) as broker:
        trio.run(_kill_and_judge, broker, seed, seconds, verdict)
    return verdict


async def _kill_and_judge(broker: RunningBroker, seed: int, seconds: float, verdict: Verdict) -> None:
    start = trio.current_time()
    witness = Witness(broker.service_url, broker.http_url, "witness", seed)
    await witness.prepare()
    async with witness.at_work():
        for number in range(KILLS):
            enemy = Enemy(broker.pulsar, broker.http, Random(f"{seed}/{number}"), seconds / KILLS)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wire.flooding_producers, enemy)
                await trio.sleep(enemy.chance.uniform(0.2, 1) * seconds / KILLS)
                await trio.to_thread.run_sync(broker.restart)
                nursery.cancel_scope.cancel()
    await witness.judge()
    verdict.complaints += witness.complaints
    verdict.seconds = trio.current_time() - start
    verdict.did = f"{KILLS} kills, the witness was owed {witness.steps}"


def stopped(folder: Path, seed: int, seconds: float) -> Verdict:
    """SIGSTOP and SIGCONT in turn, while clients storm."""

    async def run(broker: RunningBroker, enemy: Enemy) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.storm, enemy)
            while enemy.goes_on():
                os.kill(broker.pid, signal.SIGSTOP)
                try:
                    await trio.sleep(STOPPED_SECONDS)
                finally:
                    os.kill(broker.pid, signal.SIGCONT)
                enemy.counts["stops"] += 1
                await trio.sleep(STOPPED_SECONDS / 4)

    with running_broker(folder / "data", *FLAGS) as broker:
        return trio.run(besiege, broker, Attack("environment.stopped", partial(run, broker)), seed, seconds, [])


def descriptors(folder: Path, seed: int, seconds: float) -> Verdict:
    """Few descriptors, and more clients than that."""

    async def run(enemy: Enemy) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.half_open, enemy)
            nursery.start_soon(wire.storm, enemy)

    command = ("prlimit", f"--nofile={DESCRIPTORS}", *BROKER_COMMAND)
    with running_broker(folder / "data", *FLAGS, command=command) as broker:
        return trio.run(besiege, broker, Attack("environment.descriptors", run), seed, seconds, [])


ATTACKS: Final[dict[str, Callable[[Path, int, float], Verdict]]] = {
    "environment.killed": killed,
    "environment.stopped": stopped,
    "environment.descriptors": descriptors,
}
