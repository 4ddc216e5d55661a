"""`tidewire cluster doctor` on real brokers, and on the folder of a cluster that is stopped."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import FREE_PORTS
from tests.tidewire.cli.cluster.conftest import ClusterCommand
from tests.tidewire.cli.conftest import CommandLine
from tidewire.cli.asking import NotAccepted
from tidewire.cli.cluster.doctor import examined, text_of
from tidewire.cli.cluster.status import views


def found(cluster: ClusterCommand) -> list[str]:
    """Return the kinds of the findings. The exit status must say whether there are any."""
    done = cluster("doctor", "--json")
    kinds = [finding["kind"] for finding in json.loads(done.stdout)["findings"]]
    assert done.returncode == (1 if kinds else 0), done
    return kinds


def test_one_broker_is_examined_while_it_runs_and_when_it_has_stopped(made: Callable[[str], ClusterCommand]) -> None:
    """E1, R24: the same is found from outside, and nothing is changed. A folder in use is left alone."""
    cluster = made("data")
    cluster.well("start", "--brokers", "1", *FREE_PORTS)
    assert cluster.well("doctor").splitlines()[-1] == "well: nothing found"
    ledgers = cluster.data_dir / "ledgers"
    (ledgers / f"{99:020d}.ledger").touch()
    assert found(cluster) == ["files-without-record"]
    known = (cluster.folder / "cluster.json").read_text()
    http = cluster.addresses()["broker-1"]["http"]
    (cluster.folder / "cluster.json").write_text(known.replace(http, "127.0.0.1:1"))
    complaint = cluster("doctor")
    assert complaint.returncode == 1
    assert "broker-1 of " in complaint.stderr
    assert "only a broker can judge the folder" in complaint.stderr
    (cluster.folder / "cluster.json").write_text(known)

    cluster.well("stop")
    before = sorted((path, path.stat().st_mtime_ns) for path in cluster.data_dir.rglob("*"))
    assert found(cluster) == ["files-without-record"]
    (ledgers / f"{99:020d}.ledger").unlink()
    assert found(cluster) == []
    assert [one for one in before if one[0] != ledgers and one[0].exists()] == sorted(
        (path, path.stat().st_mtime_ns) for path in cluster.data_dir.rglob("*") if path != ledgers
    )
    (cluster.data_dir / "metadata").rename(cluster.data_dir / "elsewhere")
    assert found(cluster) == ["metadata-unread"]
    (cluster.data_dir / "elsewhere").rename(cluster.data_dir / "metadata")
    complaint = made("none")("doctor")
    assert complaint.returncode == 1
    assert "No cluster was started in " in complaint.stderr, "no other cluster at the default address is asked"
    assert "not the data folder" in complaint.stderr


def test_a_killed_broker_is_found_by_the_others(made: Callable[[str], ClusterCommand]) -> None:
    """C11: at once by its lock, although its session has not ended. When all are stopped, etcd is read."""
    cluster = made("data")
    cluster.well("start", "--brokers", "2", "--metadata", "etcd", *FREE_PORTS)
    assert found(cluster) == []
    cluster.well("kill", "broker-2")
    assert "broker-ended" in found(cluster)
    cluster.well("kill", "broker-1")
    said = cluster("doctor")
    assert said.stdout.splitlines()[-1] == "well: nothing found"
    assert said.stderr.startswith("None of the brokers at ")


class WithoutSession(BaseHTTPRequestHandler):
    """A broker that has lost its metadata session refuses every request."""

    def do_GET(self) -> None:
        body = b'{"reason": "The broker has lost its session."}'
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_told: object) -> None:
        """Say nothing."""


def test_a_broker_without_a_session_is_passed_over(tidewire: CommandLine, tmp_path: Path) -> None:
    """C13: another one may have its session. If none has, the folder is not examined from outside: brokers run."""
    with HTTPServer(("127.0.0.1", 0), WithoutSession) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        lost = f"127.0.0.1:{server.server_port}"
        try:
            assert examined([lost, tidewire.broker.http_url], tmp_path)["findings"] == []
            assert [view["openTransactions"] for view in views([lost, tidewire.broker.http_url], watch=False)] == [0]
            for addresses in ([lost], ["127.0.0.1:1", lost], [lost, "127.0.0.1:1"]):
                with pytest.raises(NotAccepted, match="lost its session"):
                    examined(addresses, tmp_path)
            with pytest.raises(NotAccepted, match="lost its session"):
                list(views(["127.0.0.1:1", lost], watch=False))
        finally:
            server.shutdown()
            thread.join()


def test_the_text_names_brokers_reasons_and_advice() -> None:
    broker = {
        "broker": "one",
        "state": "running",
        "owns": {"segments": 2},
        "revision": 7,
        "store": {"leads": 1, "epoch": 3},
    }
    finding = {"kind": "broker-silent", "about": "two", "what": "It is silent. " * 9, "advice": "Look. " * 20}
    report: dict[str, Any] = {
        "brokers": [broker, {**broker, "broker": "two", "owns": {}, "revision": None, "store": {}}],
        "unowned": {"idle": 4},
        "notLooked": ["the weather"],
        "findings": [finding],
        "more": 7,
    }
    lines = list(text_of(report))
    assert lines[:5] == [
        "one: running, owns segments 2; leads metadata epoch 3 at revision 7",
        "two: running, owns nothing",
        "unowned: 4, idle",
        "not looked at: the weather",
        "",
    ]
    assert lines[5] == "1. broker-silent: two"
    assert all(line.startswith("   ") for line in lines[6:-2])
    assert lines[-1] == "and 7 more findings"
    assert "   -> Look." in lines[8]
    assert max(map(len, lines)) <= 100
    assert list(text_of({**report, "findings": [], "more": 0}))[-1] == "well: nothing found"
