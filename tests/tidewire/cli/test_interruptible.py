"""Reads that end at Ctrl-C."""

import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from tidewire.cli.interruptible import InterruptibleSocket, interruptible

STUCK_SECONDS = 20
"""After this a read that misses the signal gets data instead, so that the test fails and does not hang."""


def received(read: InterruptibleSocket, count: int) -> bytes:
    with read.makefile("rb", buffering=0) as file:
        return file.read(count) or b""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_signal_that_does_not_interrupt_the_system_call_ends_the_read(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """M14, E22: Ctrl-C arrives between the last check and the system call; here another thread gets it."""
    ours, theirs = pair
    told = threading.Event()

    def send() -> None:
        told.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    stuck = threading.Timer(STUCK_SECONDS, theirs.sendall, (b"late",))
    stuck.start()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with interruptible(ours) as read:
            told.set()
            with pytest.raises(KeyboardInterrupt):
                received(read, 4)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        stuck.cancel()
        sender.join()


def test_a_signal_with_a_handler_of_its_own_leaves_the_read_waiting(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair

    def answer(_number: int, _frame: object) -> None:
        theirs.sendall(b"later")

    before = signal.signal(signal.SIGUSR1, answer)
    try:
        with interruptible(ours) as read:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert received(read, 5) == b"later"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_time_out_is_the_sockets_own(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _theirs = pair
    ours.settimeout(0.001)
    with interruptible(ours) as read, pytest.raises(TimeoutError):
        read.recv_into(bytearray(1))


def test_another_thread_reads_as_ever(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"data")
    got: list[bytes] = []

    def receive() -> None:
        with interruptible(ours) as read:
            got.append(received(read, 4))

    receiver = threading.Thread(target=receive)
    receiver.start()
    receiver.join()
    assert got == [b"data"]
