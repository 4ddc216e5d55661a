"""What `tidewire cluster status --watch` makes of brokers that say nothing more."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tidewire.cli.asking import NotAnswered
from tidewire.cli.cluster import status
from tidewire.cli.cluster.status import views


@contextmanager
def pushing(*shown: dict[str, Any]) -> Iterator[str]:
    """Serve a broker that pushes these views, and is silent from then on. Yield its address."""
    over = threading.Event()

    class Broker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            for view in shown:
                self.wfile.write(json.dumps(view).encode() + b"\n")
            over.wait()

        def log_message(self, *_told: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Broker) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            over.set()
            server.shutdown()
            thread.join()


def test_a_watch_leaves_a_broker_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """C13, C21: a stopped broker closes no connection. Its table was shown for ever."""
    monkeypatch.setattr(status, "ANSWER_SECONDS_MAX", 0.5)
    before, after = {"openTransactions": 1}, {"openTransactions": 2}
    with pushing(before, before) as stopped, pushing(before, after) as living:
        watch = views([stopped, living], watch=True)
        assert next(watch) == before
        assert next(watch) == after, "what was shown is not shown again"
        watch.close()
    with pushing() as stopped, pytest.raises(NotAnswered, match=r"was silent for 0\.5 s during its answer\.$"):
        next(views([stopped], watch=True))
