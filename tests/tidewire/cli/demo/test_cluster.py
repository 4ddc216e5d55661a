"""The demo's cluster: which broker it kills. `tests/interop/test_demo.py` has the whole story."""

from pathlib import Path

import pytest

from tidewire.cli.administration import Administration
from tidewire.cli.demo.cluster import Cluster

pytestmark = pytest.mark.interop
TOPIC = "topic://public/default/flights"


def test_the_metadata_controller_dies_and_owns_a_segment(tmp_path: Path) -> None:
    """If it owns none, a segment is moved to it first."""
    said: list[str] = []
    with Cluster(tmp_path / "data", TOPIC, 2, "embedded", say=said.append) as cluster:
        Administration(*cluster.http_addresses).create(TOPIC, segments=2)
        killed = cluster.crash()
        (moved,) = [line for line in said if "cluster move segment://public/default/flights/" in line]
        victim = moved.split()[5]
        assert killed == f"{victim} was the metadata controller, and the owner of 1 of 1 segments. It died"
        assert any(line.startswith(f"  killed {victim}, which had the pid") for line in said)
        cluster.restart()
        assert any(line.startswith(f"  {victim} pulsar=") for line in said[said.index(moved) :])
    assert said[-1].startswith("  stopped broker-")
