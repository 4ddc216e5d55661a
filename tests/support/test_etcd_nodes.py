"""An etcd cluster whose leader is killed has another one, and takes the killed member back."""

from pathlib import Path

from scripts.need import place
from tests.support.etcd_nodes import NAMES, EtcdNodes


def test_another_member_leads_when_the_leader_is_killed(tmp_path: Path) -> None:
    with EtcdNodes(tmp_path, str(place("etcd"))) as etcd:
        first = etcd.leader()
        assert first in NAMES
        etcd.nodes[first].kill()
        others = [name for name in NAMES if name != first]
        etcd.wait_leader(others[0])
        assert etcd.leader() in others
        etcd.nodes[first].start()
        assert etcd.leader() is not None
        assert set(etcd.endpoints) == set(NAMES)
