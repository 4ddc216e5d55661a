"""The client of the HTTP API for topics, against brokers that cannot serve."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tidewire.cli.administration import Administration
from tidewire.cli.asking import NotAccepted


@contextmanager
def listening(status: int, body: bytes) -> Iterator[str]:
    """Answer every request with this. Yields the address."""

    class Broker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, *_told: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Broker) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_read_passes_over_a_broker_without_a_session() -> None:
    """C13: it refuses everything, and another one may have its session. A change is not asked for twice."""
    with (
        listening(503, b'{"reason": "The broker has lost its session."}') as lost,
        listening(404, b'{"reason": "There is no such topic."}') as missing,
        listening(200, b'["topic://public/default/x"]') as well,
    ):
        assert Administration(lost, well).names("public/default") == ["topic://public/default/x"]
        for addresses in ([lost], [lost, lost]):
            with pytest.raises(NotAccepted, match="lost its session"):
                Administration(*addresses).names("public/default")
        with pytest.raises(NotAccepted, match="lost its session"):
            Administration(lost, well).create("topic://public/default/x")
        with pytest.raises(NotAccepted, match="no such topic"):
            Administration(missing, well).layout("topic://public/default/x")
