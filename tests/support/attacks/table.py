"""All attacks by name, and running some of them.

for verdict in run(folder, ["wire.storm", "files.bit"], seed=7, seconds=60): ...
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import trio

from broker.topics import IDLE_SECONDS_MAX
from tests.support.attacks import bounds, crowds, environment, files, http, kafka, wire
from tests.support.attacks.siege import (
    FLAGS,
    AnyWitness,
    Attack,
    Verdict,
    besiege,
    judge_after_kill,
    judge_unloading,
    together,
)
from tests.support.processes import running_broker

SIEGES: Final[dict[str, Attack]] = {
    attack.name: attack
    for attack in (
        *wire.ATTACKS,
        together("wire", wire.ATTACKS),
        *http.ATTACKS,
        together("http", http.ATTACKS),
        *bounds.ATTACKS,
        together("bounds", bounds.ATTACKS),
        *crowds.ATTACKS,
        together("crowds", crowds.ATTACKS),
        *kafka.ATTACKS,
        together("kafka", kafka.ATTACKS),
    )
}
NAMES: Final = (*SIEGES, *environment.ATTACKS, *files.DAMAGES)


def run(folder: Path, names: Sequence[str], seed: int, seconds: float) -> Iterator[Verdict]:
    """Run these attacks in an empty folder, for this time in total; blocks, and must not run under Trio."""
    share = seconds / len(names)
    sieges = [SIEGES[name] for name in names if name in SIEGES]
    if sieges:
        yield from _besiege(folder / "besieged", sieges, seed, share)
    for name in names:
        if name in environment.ATTACKS:
            (folder / name).mkdir()
            yield environment.ATTACKS[name](folder / name, seed, share)
    if damages := [name for name in names if name in files.DAMAGES]:
        stock = files.stocked(folder / "stocked", seed)
        for name in damages:
            yield files.damage_every_kind(stock, name, seed, share)


def _besiege(data_dir: Path, attacks: Sequence[Attack], seed: int, seconds: float) -> Iterator[Verdict]:
    witnesses: list[AnyWitness] = []
    with running_broker(data_dir, *FLAGS) as broker:
        for attack in attacks:
            yield trio.run(partial(besiege, broker, attack, seed, seconds, witnesses))
        if seconds * len(attacks) >= IDLE_SECONDS_MAX:
            # Shorter runs have no time for that.
            yield trio.run(judge_unloading, broker)
        yield judge_after_kill(broker, witnesses)
