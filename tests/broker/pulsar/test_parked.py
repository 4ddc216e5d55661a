"""What tasks hold while they wait. With thousands of clients, one message in a local variable of each is gigabytes."""

import gc
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.rooms import MESSAGE_BYTES_MAX, Rooms
from tests.support.wire import WireClient, connected, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import FrameDecoder, encode_payload_command

ROOMS: Final = tuple(f"{Path(__file__).parents[3] / room}/" for room in ("broker", "dispatch", "storage", "txn"))
PLAIN: Final = "persistent://public/default/plain"
LARGE: Final = MESSAGE_BYTES_MAX // 2


def held_by_tasks() -> dict[str, int]:
    """Return large objects in local variables of the daemon's waiting tasks, by function and variable."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    found = {}
    for frame in _frames(root):
        if frame.f_code.co_filename.startswith(ROOMS):
            for name, value in frame.f_locals.items():
                if (size := _size(value)) > LARGE:
                    found[f"{frame.f_code.co_qualname}: {name}"] = size
    return found


def _frames(task: trio.lowlevel.Task) -> Iterator[Any]:
    waiting: Any = task.coro
    while waiting is not None:
        if (frame := getattr(waiting, "cr_frame", None)) is not None:
            yield frame
        waiting = getattr(waiting, "cr_await", None)
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _frames(child)


def _size(value: object) -> int:
    """Return the size of bytes, also inside a tuple or list. Queues and objects have their own bounds."""
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value)
    if isinstance(value, tuple | list):
        return sum(map(_size, value))
    return 0


async def test_no_waiting_task_holds_a_message(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """E9: after a message is stored, delivered and acknowledged, no task that waits for the next one holds it."""
    await client.produce(1, PLAIN)
    await other.ask(commands.subscribe(PLAIN, "s", 1, 1))
    await other.send(commands.flow(1, 10))
    for number in range(3):
        await client.publish(1, number, b"x" * (MESSAGE_BYTES_MAX - 1000))
        await client.receive()
        got = (await other.receive()).message
        await other.ask(commands.ack(1, [got.message_id], request_id=number))
    await client.publish(1, 3, b"x" * (MESSAGE_BYTES_MAX - 1000))
    await client.receive()
    # Delivered, and nothing is sent or read on either connection after it.
    await other.receive()
    await wait_all_tasks_blocked(0.01)
    assert held_by_tasks() == {}


async def test_a_connection_that_is_reset_leaves_nothing_of_its_frame(
    broker: Rooms, listener: trio.SocketListener
) -> None:
    """E9: Python keeps the frames of an exception until a full collection."""
    gc.disable()
    try:
        async with connected(listener) as client:
            await client.produce(1, PLAIN)
            frame = encode_payload_command(commands.send(1, 0), message(bytes(MESSAGE_BYTES_MAX - 1000)))
            await client.stream.send_all(frame[:-1])
            await wait_all_tasks_blocked(0.01)
            assert fed_bytes() > LARGE
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await wait_all_tasks_blocked(0.01)
        assert fed_bytes() == 0
    finally:
        gc.enable()


def fed_bytes() -> int:
    """Return the bytes that all decoders hold, including those of lost connections."""
    return sum(found.buffered_bytes for found in gc.get_objects() if isinstance(found, FrameDecoder))


async def test_this_test_would_see_it() -> None:
    held = message(bytes(2 * LARGE))
    code = compile("async def parked(held, wait):\n    await wait()", ROOMS[0] + "parked.py", "exec")
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(namespace["parked"], held, trio.sleep_forever)
        await wait_all_tasks_blocked()
        assert held_by_tasks() == {"parked: held": len(held)}
        nursery.cancel_scope.cancel()
