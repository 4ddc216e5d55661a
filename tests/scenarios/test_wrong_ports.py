"""A client of another protocol is named in the log of a broker started as users start it, with the right address."""

import socket
from pathlib import Path

from tests.support.first_bytes import FIRST_BYTES
from tests.support.processes import RunningBroker, running_broker
from tidewire.wire.protocols import SpokenProtocol


def said_to(broker: RunningBroker, spoken: SpokenProtocol, here: SpokenProtocol) -> bytes:
    """Connect as a client of one protocol to the port of another. Returns the broker's answer, up to its end."""
    port = {
        SpokenProtocol.PULSAR: broker.pulsar,
        SpokenProtocol.KAFKA: broker.kafka,
        SpokenProtocol.HTTP: broker.http,
    }[here]
    with socket.create_connection(port, timeout=60) as connection:
        connection.sendall(FIRST_BYTES[spoken])
        # Without it, a broker that closes with unread bytes would reset the connection.
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_each_port_names_the_clients_of_the_others(tmp_path: Path) -> None:
    """E12: one line at warning says what the client speaks and where it belongs, and the connection ends."""
    wrong = [
        (spoken, here)
        for here in (SpokenProtocol.PULSAR, SpokenProtocol.KAFKA, SpokenProtocol.HTTP)
        for spoken in SpokenProtocol
        if spoken is not here
    ]
    with running_broker(tmp_path / "data") as broker:
        answers = {(spoken, here): said_to(broker, spoken, here) for spoken, here in wrong}
        broker.stop()
    right = {
        SpokenProtocol.PULSAR: f"Give it the address for Pulsar: {broker.service_url}.",
        SpokenProtocol.KAFKA: f"Give it the address for Kafka: {broker.kafka}.",
        SpokenProtocol.HTTP: f"Give it the address for HTTP: {broker.http_url}.",
        SpokenProtocol.TLS: "The broker serves no TLS. Turn TLS off in the client, or end it in a proxy.",
    }
    for spoken, here in wrong:
        reason = f"The client speaks {spoken} at the port for {here}. {right[spoken]}"
        lines = [line for line in broker.stderr.splitlines() if reason in line]
        assert len(lines) == 1, (spoken, here, broker.stderr)
        assert "warning" in lines[0]
        # Kafka's protocol has no answer that is no response.
        assert (reason.encode() in answers[spoken, here]) is (here is not SpokenProtocol.KAFKA)
