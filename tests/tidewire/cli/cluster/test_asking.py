"""Which broker a command asks, if not all of them are well. The brokers are scripted."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tidewire.cli.cluster import command
from tidewire.cli.cluster.folder import Addresses, Cluster, ClusterFolder

UNLOAD = "POST /admin/v2/cluster/unload"
HEALTH = "GET /admin/v2/brokers/health"


class Scripted:
    """A broker that answers by a table, and 503 to all else. It notes what it was asked."""

    def __init__(self, **answers: int) -> None:
        self.asked: list[str] = []
        noted = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                noted.append(f"{self.command} {self.path}")
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                code = answers.get(self.path.rpartition("/")[2], 503)
                body = b"" if code == 204 else b'{"reason": "It cannot."}'
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_told: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"


@contextmanager
def cluster(data_dir: Path, *brokers: Scripted) -> Iterator[Callable[[], None]]:
    """Serve as these brokers. What is yielded runs `tidewire cluster unload` on them."""
    folder = ClusterFolder(data_dir)
    folder.path.mkdir()
    known = {f"broker-{number}": Addresses("127.0.0.1:1", broker.address) for number, broker in enumerate(brokers, 1)}
    folder.write(Cluster("embedded", "127.0.0.1:1", brokers[0].address, brokers=known))
    threads = [threading.Thread(target=broker.server.serve_forever) for broker in brokers]
    for thread in threads:
        thread.start()
    try:
        yield lambda: command.unload("persistent://public/default/a", data_dir=data_dir)
    finally:
        for broker, thread in zip(brokers, threads, strict=True):
            broker.server.shutdown()
            thread.join()
            broker.server.server_close()


def test_a_broker_without_a_session_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C13: it refuses everything, and another one does what is asked."""
    lost, well = Scripted(), Scripted(unload=204)
    with cluster(tmp_path, lost, well) as unload:
        unload()
    assert (lost.asked, well.asked) == ([UNLOAD, HEALTH], [UNLOAD])
    assert capsys.readouterr().out.startswith("unloaded ")


@pytest.mark.parametrize("code", [409, 503])
def test_the_refusal_of_a_broker_that_is_well_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    """It may have asked the owner already, so no other broker is asked for the same."""
    refusing, other = Scripted(unload=code, health=200), Scripted(unload=204)
    with cluster(tmp_path, refusing, other) as unload, pytest.raises(SystemExit):
        unload()
    assert other.asked == []
    assert "It cannot." in capsys.readouterr().err


def test_if_no_broker_has_a_session_the_last_one_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with cluster(tmp_path, Scripted(), Scripted()) as unload, pytest.raises(SystemExit):
        unload()
    assert capsys.readouterr().err == "tidewire cluster: It cannot.\n"
