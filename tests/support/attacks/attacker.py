"""The attackers' side: connections that send anything, and the length of an attack."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Final

import trio

from broker.addresses import Address
from tests.support.attacks.witness import within
from tests.support.wire import WireClient
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

READ_BYTES: Final = 256 * 1024
LOST: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
"""The errors of a connection that the broker has closed or refused."""


class Attacker:
    """The means of one attack: addresses, random numbers, time; and its results."""

    def __init__(
        self, pulsar: Address, http: Address, chance: Random, seconds: float, kafka: Address | None = None
    ) -> None:
        self.pulsar = pulsar
        self.http = http
        self.kafka = kafka
        self.chance = chance
        self.until = trio.current_time() + seconds
        self.counts: Counter[str] = Counter()
        """What was done, for the report."""
        self.complaints: list[str] = []

    def goes_on(self) -> bool:
        """Whether there is time left."""
        return trio.current_time() < self.until

    async def in_parallel(self, tasks: int, attack: Callable[["Attacker", Random], Awaitable[None]]) -> None:
        """Run the attack in `tasks` tasks, each repeatedly with its own random numbers, until the time is over.

        After that time, attackers that wait for the broker are cancelled.
        """

        async def repeat(chance: Random) -> None:
            while self.goes_on():
                try:
                    await attack(self, chance)
                except* LOST:
                    self.counts["connections lost"] += 1
                await trio.lowlevel.checkpoint()

        with trio.CancelScope(deadline=self.until):
            async with trio.open_nursery() as nursery:
                for _ in range(tasks):
                    nursery.start_soon(repeat, Random(self.chance.getrandbits(64)))

    @asynccontextmanager
    async def stream(self, address: Address | None = None) -> AsyncIterator[trio.SocketStream]:
        """Yield a connection that has sent nothing yet."""
        async with await trio.open_tcp_stream(*(address or self.pulsar)) as stream:
            self.counts["connections"] += 1
            yield stream

    @asynccontextmanager
    async def client(self) -> AsyncIterator["AttackerClient"]:
        """Yield a connection that has sent CONNECT and was answered."""
        async with self.stream() as stream:
            client = AttackerClient(stream)
            await client.ask(commands.connect("attack"))
            yield client

    async def ends(self, stream: trio.abc.Stream) -> None:
        """Wait until the broker closes the connection; complain if it does not."""

        async def read() -> None:
            with suppress(*LOST):
                while await stream.receive_some(READ_BYTES):
                    pass

        await within(read(), "a connection that broke the protocol was not closed")


class AttackerClient(WireClient):
    """A connection that the broker may close at any time."""

    async def receive(self) -> pb.BaseCommand:
        """Return the next command.

        Raises:
            trio.BrokenResourceError: the broker has closed the connection.
        """
        while (frame := await self.receive_frame()) is not None:
            if frame.command.type not in self.ignored:
                return frame.command
        raise trio.BrokenResourceError
