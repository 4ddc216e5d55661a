"""`tidewire backup` of a cluster with embedded metadata."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.processes import FREE_PORTS
from tests.tidewire.cli.cluster.conftest import SECONDS_MAX, ClusterCommand


def test_any_broker_may_be_named_for_a_backup(made: Callable[[str], ClusterCommand], tmp_path: Path) -> None:
    """Only the metadata controller can begin one, and who that is changes."""
    cluster = made("data")
    cluster.well("start", "--brokers", "2", *FREE_PORTS)
    addresses = {broker: found["http"] for broker, found in cluster.addresses().items()}
    assert cluster.status()["metadataController"] in addresses
    for broker, http in addresses.items():
        target = tmp_path / broker
        command = [sys.executable, "-m", "tidewire.cli", "backup", str(target), "--http", http, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        assert done.returncode == 0, done
        assert json.loads(done.stdout)["of"] == str(cluster.data_dir)
        assert (target / "backup.json").exists()
