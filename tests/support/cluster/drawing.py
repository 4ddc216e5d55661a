"""Stories drawn from a seed: three processes, their clients, and what can happen to them.

    found = play_seed(17)           # what is wrong, and the story; None if every promise was kept
    print(shortest(17, found))      # the shortest part of it that still fails

Beside its commands, the seed draws how long messages and the disk take, where received bytes are cut, and pauses
between the operations of the disk within one call.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from storage.metadata.cluster.roles import Role
from tests.support.cluster.commands import Commands
from tests.support.cluster.judging import judge
from tests.support.cluster.nodes import Cluster, Node
from tests.support.cluster.transcripts import repeatably, run

BROKERS: Final = ("b1", "b2", "b3")
EPISODES: Final = 8
CALM_SECONDS: Final = 26.0
"""How long the cluster has to recover from everything: a call waits 20 s at most."""
TRIES_MAX: Final = 300
"""How often a part of a story is played to find a shorter one."""

MOMENTS: Final = (
    "write .log",
    "sync .log",
    "rename .log",
    "exists fence-",
    "link fence-",
    "write fence-",
    "lock controller-",
    "write beat-",
    "sync metadata",
    "names metadata",
    "write .snapshot",
    "rename .snapshot",
    "remove",
    "open",
)
"""Operations of the disk before which a process stops or dies."""


class Found(NamedTuple):
    """A story that broke a promise."""

    commands: list[str]
    complaints: list[str]
    transcript: str

    def __str__(self) -> str:
        return "\n".join([*self.complaints, "", "The commands:", *self.commands, "", "The story:", self.transcript])


def draw(seed: int) -> list[str]:
    """The commands of a seed."""
    return _Drawing(Random(f"commands {seed}")).commands()


def play_seed(seed: int, commands: Sequence[str] | None = None) -> Found | None:
    """Play the story of a seed, or these commands with its delays. Not within another test of Hypothesis."""
    return repeatably(lambda: play_within_hypothesis(seed, commands))


def play_within_hypothesis(seed: int, commands: Sequence[str] | None = None) -> Found | None:
    """The same where Hypothesis has seeded Trio's scheduler already."""
    return run(_play, seed, draw(seed) if commands is None else list(commands))


def shortest(seed: int, found: Found) -> Found:
    """Leave out commands while the story still fails."""
    tries = 0
    size = len(found.commands) // 2
    while size:
        begin = 0
        while begin < len(found.commands) and tries < TRIES_MAX:
            tries += 1
            shorter = play_seed(seed, found.commands[:begin] + found.commands[begin + size :])
            if shorter is None:
                begin += size
            else:
                found = shorter
        size //= 2
    return found


async def _play(seed: int, commands: list[str]) -> Found | None:
    random = Random(f"delays {seed}")
    told: list[str] = []
    async with Cluster.open(seed=seed) as cluster:
        _disturb(cluster, random)
        player = Commands(cluster, settle=0)
        for command in commands:
            told += [f"> {command}", *await player.play(command)]
        complaints = await _calm_down(cluster, player, told)
        if not complaints:
            complaints = await judge(cluster)
    return Found(commands, complaints, "\n".join(told)) if complaints else None


def _disturb(cluster: Cluster, random: Random) -> None:
    latency = random.choice((0.0005, 0.002, 0.02))
    cluster.network.latency = lambda: random.expovariate(1 / latency)
    cluster.network.slices_max = random.choice((0, 0, 100, 5000))
    cluster.snapshot_log_bytes = random.choice((16, 64, 1000)) * 1024
    disk_latency = random.choice((0.0, 0.001, 0.01))
    pauses = random.choice((0.0, 0.0, 0.1, 0.3))

    def disturb(node: Node) -> None:
        node.files.latency_max = disk_latency
        node.files.pauses = pauses

    cluster.disturb = disturb


async def _calm_down(cluster: Cluster, player: Commands, told: list[str]) -> list[str]:
    """Let every process run, and everything recover. Then each of them must read and write."""
    for node in cluster.nodes.values():
        node.files.forget_moments()
    for command in (
        "heal",
        "empty-disk",
        *(f"continue {name}" for name in BROKERS),
        # Those that are just closing have ended then.
        "tick 5",
        f"start {' '.join(BROKERS)}",
        f"tick {CALM_SECONDS}",
        "state",
    ):
        told += [f"> {command}", *await player.play(command)]
    begun = len(cluster.history.calls)
    for command in (*(f"put {name} /last/{name} last-{name}" for name in BROKERS), "tick 5"):
        told += [f"> {command}", *await player.play(command)]
    complaints = [
        f"{call.broker} does not write in the end" for call in cluster.history.calls[begun:] if call.outcome != "done"
    ]
    complaints += [f"{name} does not run in the end" for name in BROKERS if name not in cluster.nodes]
    complaints += [
        f"{name} is not open in the end"
        for name, node in cluster.nodes.items()
        if node.store is None or node.store.role not in {Role.LEADING, Role.FOLLOWING}
    ]
    return complaints


class _Drawing:
    """Draws one story: episodes of trouble, with calls before, in and behind each."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._values = 0
        self._sessions: dict[str, list[str]] = {name: [] for name in BROKERS}

    def commands(self) -> list[str]:
        commands = ["start b1", "tick 0.5", "start b2 b3", "tick 0.5"]
        commands += [f"watch {name} /" for name in BROKERS]
        kinds: list[Callable[[], tuple[list[str], list[str]]]]
        kinds = [self._stop, self._stop, self._kill, self._kill, self._network, self._close, self._rare]
        # Some stories have few kinds of trouble, so that it is not hidden behind another.
        kinds = self._random.sample(kinds, self._random.choice((1, 2, len(kinds))))
        for _ in range(EPISODES):
            begins, ends = self._random.choice(kinds)()
            calls = self._calls(6)
            place = self._random.randint(0, len(calls))
            commands += [*calls[:place], *begins, *calls[place:]]
            commands += [*self._calls(3), self._tick(0.3, 2.5, 4, 6), *self._calls(3), *ends]
            commands += [*self._calls(3), self._tick(0.003, 0.05, 0.3, 2)]
        return commands

    def _tick(self, *seconds: float) -> str:
        return f"tick {self._random.choice(seconds) * self._random.uniform(0.5, 1.5):.4f}"

    def _broker(self) -> str:
        return self._random.choice((*BROKERS, "leader"))

    def _value(self) -> str:
        self._values += 1
        return f"v{self._values}"

    def _calls(self, most: int) -> list[str]:
        commands: list[str] = []
        for _ in range(self._random.randint(0, most)):
            commands.append(self._call())
            if self._random.random() < 0.3:
                commands.append(self._tick(0.001, 0.003, 0.01, 0.03))
        return commands

    def _call(self) -> str:
        name = self._random.choice(BROKERS)
        key = f"/{self._random.choice('abc')}"
        kinds = ("put", "append", "big", "delete", "get", "session", "ephemeral", "end", "watch")
        call = self._random.choices(kinds, (30, 12, 6, 6, 24, 5, 6, 2, 2))[0]
        sessions = self._sessions[name]
        if call == "put":
            condition = f" if {self._random.choice((0, self._random.randrange(40)))}"
            return f"put {name} {key} {self._value()}{condition if self._random.random() < 0.3 else ''}"
        if call == "append":
            return f"append {name} /s {self._value()}"
        if call == "big":
            size = self._random.choice(("3 1", "12 4", "12 40", "20 40"))
            return f"big {name} /big{self._random.randrange(2)} {size}"
        if call == "delete":
            return f"delete {name} {key}"
        if call == "session":
            sessions.append(f"s{self._value()}")
            return f"session {name} {sessions[-1]}"
        if call == "ephemeral" and sessions:
            session = self._random.choice(sessions)
            return f"put {name} /e/{session} {self._value()} in {session}"
        if call == "end" and sessions:
            return f"end {name} {self._random.choice(sessions)}"
        return f"watch {name} /" if call == "watch" else f"get {name} {key}"

    # -- each kind of trouble: how it begins, and how it ends

    def _network(self) -> tuple[list[str], list[str]]:
        kind = self._random.choice(("cut", "cut", "hold", "hold", "half-close"))
        return [f"{kind} {' '.join(self._random.sample(BROKERS, 2))}"], self._random.choice(([], ["heal"], ["heal"]))

    def _moment(self) -> str:
        draw = self._random.random()
        if draw < 0.3:
            return ""
        if draw < 0.6:
            return f" at {self._random.randint(1, 40)}"
        return f" at {self._random.choice(MOMENTS)} {self._random.randint(1, 3)}"

    def _stop(self) -> tuple[list[str], list[str]]:
        return [f"stop {self._broker()}{self._moment()}"], [f"continue {name}" for name in BROKERS]

    def _kill(self) -> tuple[list[str], list[str]]:
        return [f"kill {self._broker()}{self._moment()}"], [f"start {' '.join(BROKERS)}"]

    def _close(self) -> tuple[list[str], list[str]]:
        return [f"close {self._broker()}"], ["tick 2.5", f"start {' '.join(BROKERS)}"]

    def _rare(self) -> tuple[list[str], list[str]]:
        draw = self._random.random()
        if draw < 0.4:
            started = " ".join(self._random.sample(BROKERS, 3))
            return ["lose-power", f"start {started}"], [f"watch {name} /" for name in BROKERS]
        if draw < 0.7:
            return ["fill-disk"], ["empty-disk"]
        return [f"snapshot {self._broker()}"], []
