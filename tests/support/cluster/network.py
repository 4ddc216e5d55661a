"""A simulated network: connections between processes that take time, break, stand still and end one way.

    network = Network(Random(seed))
    listener = network.listen("b1")
    stream = await network.connect("b2", "b1")

    network.cut("b1", "b2")            # connections break off, and new ones are refused
    network.hold("b1", "b2")           # what b1 sends does not reach b2. The other way works
    network.half_close("b1", "b2")     # b2 sees the end of what b1 sends. The other way works
    network.heal()                     # what was held arrives now
    network.forget("b1")               # b1's process has ended

As with TCP, bytes arrive in order or the connection is lost. A sender waits while WINDOW bytes have not been received,
so a process that reads nothing stops its senders. A process that is stopped is still connected to.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from random import Random
from typing import Final

import trio

WINDOW: Final = 256 * 1024
"""How many bytes are under way in one direction of a connection."""

LATENCY_SECONDS: Final = 0.001

Latency = Callable[[], float]
"""How long the next bytes take, in seconds."""


class _Line:
    """One direction between two processes, with all its connections."""

    def __init__(self) -> None:
        self.is_cut = False
        self.is_held = False
        self.changed = trio.lowlevel.ParkingLot()
        self.pipes: list[_Pipe] = []


class _Pipe:
    """One direction of one connection."""

    def __init__(self, line: _Line, network: "Network") -> None:
        self._line = line
        self._network = network
        self._chunks: deque[tuple[float, bytes]] = deque()
        """When each arrives. An empty one is the end."""
        self._bytes = 0
        self._changed = trio.lowlevel.ParkingLot()
        self._has_end = False
        self._is_broken = False
        self._is_deaf = False
        """Whether the receiver has gone, so that the next bytes break the connection."""
        line.pipes.append(self)

    def wake(self) -> None:
        self._changed.unpark_all()

    def put(self, data: bytes) -> None:
        if self._has_end:
            return
        due = trio.current_time() + self._network.latency()
        if self._chunks:
            due = max(due, self._chunks[-1][0])
        self._chunks.append((due, data))
        self._bytes += len(data)
        self._has_end = not data
        self.wake()

    def end(self) -> None:
        """The sender sends nothing more. What is under way arrives."""
        self.put(b"")

    def break_off(self) -> None:
        self._is_broken = True
        self._chunks.clear()
        self._bytes = 0
        self.wake()

    def receiver_left(self) -> None:
        self._is_deaf = True
        self._chunks.clear()
        self._bytes = 0
        self.wake()

    async def send(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        while self._bytes >= WINDOW and not (self._is_broken or self._is_deaf):
            await self._changed.park()
        if self._is_broken or self._is_deaf:
            raise trio.BrokenResourceError("the connection was reset")
        self.put(data)

    async def receive(self, most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while True:
            if self._is_broken:
                raise trio.BrokenResourceError("the connection was reset")
            if self._is_deaf:
                raise trio.ClosedResourceError("this end was closed")
            due = self._chunks[0][0] if self._chunks and not self._line.is_held else inf
            if due <= trio.current_time():
                break
            with trio.move_on_at(due):
                await self._changed.park()
        due, data = self._chunks[0]
        if not data:
            return b""
        most = min(most, self._network.slice_bytes())
        if len(data) > most:
            self._chunks[0] = (due, data[most:])
        else:
            self._chunks.popleft()
        self._bytes -= min(len(data), most)
        self.wake()
        return data[:most]


class SimulatedStream(trio.abc.Stream):
    """One end of a connection."""

    def __init__(self, out: _Pipe, into: _Pipe) -> None:
        self._out = out
        self._into = into
        self._is_closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See `SendStream`."""
        self._require_open()
        if data:
            await self._out.send(bytes(data))
        else:
            await trio.lowlevel.checkpoint()
        self._require_open()

    async def wait_send_all_might_not_block(self) -> None:
        """See `SendStream`."""
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See `ReceiveStream`."""
        self._require_open()
        return await self._into.receive(max_bytes or WINDOW)

    async def aclose(self) -> None:
        """See `AsyncResource`."""
        self.leave()
        await trio.lowlevel.checkpoint()

    def leave(self) -> None:
        """Close it, as the end of its process does."""
        if not self._is_closed:
            self._is_closed = True
            self._out.end()
            self._into.receiver_left()

    def _require_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this end was closed")


class SimulatedListener(trio.abc.Listener[SimulatedStream]):
    """Where a process is reached."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[SimulatedStream](1000)

    async def accept(self) -> SimulatedStream:
        """The next connection."""
        return await self._receive.receive()

    def offer(self, stream: SimulatedStream) -> None:
        """A connection that waits to be accepted.

        Raises:
            ConnectionRefusedError: nobody listens any more.
        """
        try:
            self._send.send_nowait(stream)
        except (trio.BrokenResourceError, trio.WouldBlock) as refused:
            raise ConnectionRefusedError("nobody listens") from refused

    async def aclose(self) -> None:
        """Refuse connections from now on."""
        self.leave()
        await trio.lowlevel.checkpoint()

    def leave(self) -> None:
        """Close it, as the end of its process does."""
        self._receive.close()


class Network:
    """See the module's docstring. Processes have names."""

    def __init__(self, random: Random) -> None:
        self.latency: Latency = lambda: LATENCY_SECONDS
        self.slices_max = 0
        """Above 0, a reader gets at most so many bytes at once, drawn anew each time."""
        self._random = random
        self._lines: dict[tuple[str, str], _Line] = {}
        self._listeners: dict[str, SimulatedListener] = {}
        self._streams: dict[str, list[SimulatedStream]] = {}

    def listen(self, name: str) -> SimulatedListener:
        """A process begins to listen, in the place of an earlier one of that name."""
        self._listeners[name] = SimulatedListener()
        self._streams[name] = []
        return self._listeners[name]

    async def connect(self, name: str, address: str) -> SimulatedStream:
        """A new connection of the process `name`; its own end.

        Raises:
            ConnectionRefusedError: nobody listens there, or the network is cut.
        """
        there, back = self._line(name, address), self._line(address, name)
        for line in (there, back):
            await trio.sleep(self.latency())
            while line.is_held:
                await line.changed.park()
        if there.is_cut or back.is_cut:
            raise ConnectionRefusedError(f"{name} does not reach {address}")
        out, into = _Pipe(there, self), _Pipe(back, self)
        far = SimulatedStream(into, out)
        self._listeners[address].offer(far)
        near = SimulatedStream(out, into)
        self._streams[name].append(near)
        self._streams[address].append(far)
        return near

    def cut(self, one: str, other: str) -> None:
        """Break the connections between two processes. New ones are refused until `heal`."""
        for line in (self._line(one, other), self._line(other, one)):
            line.is_cut = True
            for pipe in line.pipes:
                pipe.break_off()
            line.pipes.clear()

    def hold(self, sender: str, receiver: str) -> None:
        """Let nothing from `sender` arrive at `receiver` until `heal`. Nobody is told."""
        self._line(sender, receiver).is_held = True

    def half_close(self, sender: str, receiver: str) -> None:
        """End that direction of the present connections."""
        for pipe in self._line(sender, receiver).pipes:
            pipe.end()

    def heal(self) -> None:
        """All lines work again."""
        for line in self._lines.values():
            line.is_cut = line.is_held = False
            line.changed.unpark_all()
            for pipe in line.pipes:
                pipe.wake()

    def has_trouble(self, name: str) -> bool:
        """Whether a line from or to this process is cut or held."""
        return any(name in pair and (line.is_cut or line.is_held) for pair, line in self._lines.items())

    def forget(self, name: str) -> None:
        """A process has ended. The others get what it has sent, then the end."""
        self._listeners[name].leave()
        for stream in self._streams.pop(name):
            stream.leave()

    def slice_bytes(self) -> int:
        """How much the next reader gets at once."""
        return self._random.randint(1, self.slices_max) if self.slices_max else WINDOW

    def _line(self, sender: str, receiver: str) -> _Line:
        return self._lines.setdefault((sender, receiver), _Line())
