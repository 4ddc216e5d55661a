"""How `tidewire metadata` reads a broker's invalid answers."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tidewire.cli.asking import NotAccepted, NotAnswered
from tidewire.cli.broker_http import ANSWER_SECONDS_MAX
from tidewire.cli.endings import CommandFailed
from tidewire.cli.interruptible import InterruptibleSocket
from tidewire.cli.metadata_http import BrokerMetadata

LINES = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
FIRST = b'{"key":"/a"}\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], BrokerMetadata]]:
    """Run a broker that answers one request with these bytes, and disconnects."""
    threads = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer(said: bytes) -> None:
            connection, _ = listener.accept()
            with connection:
                received = b""
                while b"\r\n\r\n" not in received:
                    received += connection.recv(4096)
                connection.sendall(said)

        def broker(said: bytes) -> BrokerMetadata:
            threads.append(threading.Thread(target=answer, args=(said,), daemon=True))
            threads[-1].start()
            return BrokerMetadata(f"127.0.0.1:{listener.getsockname()[1]}")

        yield broker
        for thread in threads:
            thread.join()


def test_lines_are_read_across_chunks(answering: Callable[[bytes], BrokerMetadata]) -> None:
    broker = answering(LINES + chunk(FIRST[:5]) + chunk(FIRST[5:] + FIRST) + chunk(b""))
    assert list(broker.dump("", None)) == [FIRST, FIRST]


def test_an_answer_that_could_not_be_given_to_its_end(answering: Callable[[bytes], BrokerMetadata]) -> None:
    lines = answering(LINES + chunk(FIRST) + chunk(b'{"failed":"the disk is full"}\n') + chunk(b"")).dump("", None)
    assert next(lines) == FIRST
    with pytest.raises(CommandFailed, match=r"stopped in the middle of its answer: the disk is full\.$"):
        next(lines)


@pytest.mark.parametrize(
    "said",
    [LINES + chunk(FIRST), LINES + chunk(FIRST) + b"20\r\n{", b"HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\n" + FIRST],
)
def test_a_broker_that_goes_away_in_between(answering: Callable[[bytes], BrokerMetadata], said: bytes) -> None:
    """Part of an answer never looks like the whole answer."""
    with pytest.raises(NotAnswered, match="closed the connection during its answer"):
        list(answering(said).dump("", None))


def test_a_refusal_without_a_reason(answering: Callable[[bytes], BrokerMetadata]) -> None:
    with pytest.raises(NotAccepted, match="502 Bad Gateway"):
        answering(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\noops").get("/a")


@pytest.mark.parametrize(
    ("said", "mistake"),
    [
        (b"\x00\x00\x00\x9e\x00\x00\x00\x9a\x08\x0er\x95\x01\n", "does not speak HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
        (b"", "closed the connection without an answer"),
    ],
)
def test_a_listener_of_another_protocol(
    answering: Callable[[bytes], BrokerMetadata], said: bytes, mistake: str
) -> None:
    """A Pulsar or Kafka address is named as such, and its bytes are not shown."""
    with pytest.raises(NotAnswered) as refused:
        answering(said).get("/a")
    broker = str(refused.value).split()[3]
    assert str(refused.value) == (
        f"What listens at {broker} {mistake}. Give the broker's HTTP address by --http or TIDEWIRE_HTTP_URL. "
        "Its line `ready` names it as http=."
    )


def test_a_watch_waits_for_its_broker_as_long_as_it_takes(
    answering: Callable[[bytes], BrokerMetadata], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Days may pass without a change. A list has a time limit."""
    timeouts: list[float | None] = []

    def settimeout(read: InterruptibleSocket, value: float | None) -> None:
        timeouts.append(value)
        socket.socket.settimeout(read, value)

    whole = LINES + chunk(FIRST) + chunk(b"")
    broker = answering(whole)
    monkeypatch.setattr(InterruptibleSocket, "settimeout", settimeout)
    with pytest.raises(CommandFailed, match="ended the watch"):
        list(broker.watch(""))
    assert timeouts[-1] is None
    list(answering(whole).dump("", None))
    assert timeouts[-1] == ANSWER_SECONDS_MAX
