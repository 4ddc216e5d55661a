"""`tidewire cluster` as users type it: each command is a process of its own, so what it starts outlives it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SECONDS_MAX = 150


class ClusterCommand:
    """`tidewire cluster ...` on one data folder."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.folder = data_dir / "cluster"

    def command(self, *arguments: str) -> list[str]:
        """Return the command line."""
        return [sys.executable, "-m", "tidewire.cli", "cluster", *arguments, "--data-dir", str(self.data_dir)]

    def __call__(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run the command to its end."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEWIRE_")}
        return subprocess.run(
            self.command(*arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            env=environment,
            check=False,
        )

    def well(self, *arguments: str) -> str:
        """Return the command's output. It must succeed, with nothing on standard error."""
        done = self(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def complaint(self, *arguments: str, status: int = 1) -> str:
        """Return the command's complaint: one sentence or more, in one line."""
        done = self(*arguments)
        assert done.returncode == status, done
        assert done.stderr.count("\n") == 1, done
        return done.stderr

    def pids(self) -> dict[str, int]:
        """Return the processes that the folder's pid files name."""
        found = [*self.folder.glob("*.pid"), *self.folder.glob("etcd/*.pid")]
        return {path.stem: int(path.read_text().split()[0]) for path in found}

    def addresses(self) -> dict[str, dict[str, str]]:
        """Return the brokers' addresses."""
        return dict(json.loads((self.folder / "cluster.json").read_text())["brokers"])

    def status(self) -> dict[str, Any]:
        """Return the cluster as a broker shows it."""
        return dict(json.loads(self.well("status", "--json")))


def states(view: dict[str, Any]) -> dict[str, str]:
    """Return the state of each broker in a view."""
    return {broker["broker"]: broker["state"] for broker in view["brokers"]}


def is_running(pid: int) -> bool:
    """Whether the process has not ended. One that nobody waited for has."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    return re.search(r"^State:\s+Z", status, re.MULTILINE) is None


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[[str], ClusterCommand]]:
    """Make clusters in folders of these names. What they left running is stopped at the end of the test."""
    clusters: list[ClusterCommand] = []

    def make(name: str) -> ClusterCommand:
        clusters.append(ClusterCommand(tmp_path / name))
        return clusters[-1]

    yield make
    for cluster in clusters:
        if (cluster.folder / "cluster.json").exists():
            cluster.well("stop")
