"""The unmodified `pulsar-client` on regular topics: messages in order, and a shared subscription."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Final

import trio

from tests.support.attacks.outside_witness import PUBLISHED, OutsideWitness
from tests.support.chaos.cluster import Cluster
from tests.support.chaos.witnesses import FINISH_SECONDS_MAX, Segments
from tests.support.cluster_loads import REGULAR, Regular

GOES_ON_ROUNDS: Final = 2
GOES_ON_MESSAGES: Final = 2
RECONNECT_SECONDS_MAX: Final = 120.0
"""Its pauses between two attempts to connect grow to a minute."""


class InOrder:
    """A producer for each of several topics, in a thread. Each message is acknowledged before the next one."""

    def __init__(self) -> None:
        self.name = "pulsar-client"
        self.scalable: Sequence[str] = ()
        self.heal_seconds_max = RECONNECT_SECONDS_MAX
        self.finish_seconds_max = FINISH_SECONDS_MAX
        self.regular: Sequence[str] = REGULAR
        self._stopped = trio.Event()
        self._failure: Exception | None = None
        self._client: Regular

    async def open(self, cluster: Cluster, stack: AsyncExitStack) -> None:
        """See `Witness.open`."""
        self._client = Regular(cluster.url(), log_in(cluster))
        self._logbook = cluster.logbook
        stack.callback(self._client.stop)

    def begin(self, nursery: trio.Nursery) -> None:
        """See `Witness.begin`.

        A producer that loses its connection before its first receipt begins again with the same sequence id, also for
        its next message. That one is then a duplicate, and is lost. So nothing may happen before `goes_on` returns.
        """
        nursery.start_soon(self._send)

    async def _send(self) -> None:
        try:
            await trio.to_thread.run_sync(self._client.send, abandon_on_cancel=True)
        except Exception as error:
            self._failure = error
            self._logbook.say(f"a send of pulsar-client failed: {error!r}")
        self._stopped.set()

    def broker_died(self, random: Random) -> None:
        """See `Witness.broker_died`. It gives up nothing."""

    async def goes_on(self) -> None:
        """See `Witness.goes_on`."""
        if self._failure is None:
            wanted = self._client.rounds + GOES_ON_ROUNDS
            await trio.to_thread.run_sync(self._client.wait_round, wanted, abandon_on_cancel=True)

    async def finish(self, segments: Segments) -> list[str]:
        """See `Witness.finish`."""
        self._client.stop()
        await self._stopped.wait()
        complaints = [] if self._failure is None else [f"a send failed: {self._failure!r}"]
        return complaints + await self._judge(self._client)

    def waits_for(self) -> str:
        """See `Witness.waits_for`."""
        return f"round {self._client.rounds}, {self._failure!r}"

    async def read_again(self, url: str) -> list[str]:
        """See `Witness.read_again`."""
        again = Regular(url)
        again.rounds = self._client.rounds
        return await self._judge(again)

    async def _judge(self, client: Regular) -> list[str]:
        rounds = client.rounds
        found = await trio.to_thread.run_sync(client.read, abandon_on_cancel=True)
        return [
            f"{topic} should have 0 to {rounds - 1}, once and in order, and it has {_unlike(numbers, rounds)}"
            for topic, numbers in found.items()
            # A last message may be there whose acknowledgement never came.
            if numbers != list(range(rounds)) and numbers != list(range(rounds + 1))
        ]

    def summary(self) -> str:
        """See `Witness.summary`."""
        return f"{self._client.rounds} messages on each of {len(REGULAR)} topics"


class Sharing:
    """A producer, and a consumer that acknowledges single messages."""

    def __init__(self) -> None:
        self.name = "pulsar-client's shared subscription"
        self.scalable: Sequence[str] = ()
        self.heal_seconds_max = RECONNECT_SECONDS_MAX
        self.finish_seconds_max = FINISH_SECONDS_MAX
        self.regular: Sequence[str] = ("persistent://public/default/chaos-outside",)
        self._witness: OutsideWitness
        self._is_over = trio.Event()
        self._stopped = trio.Event()

    async def open(self, cluster: Cluster, stack: AsyncExitStack) -> None:
        """See `Witness.open`."""
        self._witness = OutsideWitness(cluster.url(), "chaos", log_in(cluster))

    def begin(self, nursery: trio.Nursery) -> None:
        """See `Witness.begin`."""
        nursery.start_soon(self._work)

    async def _work(self) -> None:
        async with self._witness.at_work():
            await self._is_over.wait()
        self._stopped.set()

    def broker_died(self, random: Random) -> None:
        """See `Witness.broker_died`. It gives up nothing."""

    async def goes_on(self) -> None:
        """See `Witness.goes_on`."""
        await self._witness.happenings.nth(PUBLISHED, GOES_ON_MESSAGES)

    async def finish(self, segments: Segments) -> list[str]:
        """See `Witness.finish`."""
        self._is_over.set()
        await self._stopped.wait()
        await self._witness.judge()
        return self._witness.complaints

    def waits_for(self) -> str:
        """See `Witness.waits_for`."""
        return f"{self._witness.steps} messages were acknowledged, {self._witness.complaints}"

    async def read_again(self, url: str) -> list[str]:
        """See `Witness.read_again`."""
        before = len(self._witness.complaints)
        self._witness.restarted(url, "")
        await self._witness.judge()
        return self._witness.complaints[before:]

    def summary(self) -> str:
        """See `Witness.summary`."""
        return f"{self._witness.steps} messages"


def log_in(cluster: Cluster) -> Path:
    """Return the file with what the clients say of their connections. It is one file, see `OutsideWitness`."""
    return cluster.folder / "pulsar-client.log"


def _unlike(numbers: list[int], rounds: int) -> str:
    """Return where the numbers begin to differ from 0, 1, 2 and so on."""
    place = next((place for place, number in enumerate(numbers) if number != place), len(numbers))
    around = ", ".join(map(str, numbers[max(0, place - 2) : place + 3]))
    missing = set(range(rounds)) - set(numbers)
    return f"{len(numbers)} messages, at {place}: {around}; {len(missing)} are missing: {sorted(missing)[:10]}"
