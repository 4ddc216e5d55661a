"""The broker that kills itself at a given write. The test counts what is left of it."""

import socket
from pathlib import Path

import pytest

from tests.support.dying_broker import dying_broker
from tests.support.dying_process import Death
from tests.support.processes import BrokerFailure


def test_lives_dies_and_lives_again_under_its_addresses(tmp_path: Path) -> None:
    with dying_broker(tmp_path / "data") as broker:
        assert broker.start()
        addresses = broker.pulsar, broker.http
        socket.create_connection(broker.pulsar).close()
        broker.kill()
        assert not broker.is_running
        assert broker.start()
        assert (broker.pulsar, broker.http) == addresses
        socket.create_connection(broker.http).close()
        broker.stop()


@pytest.mark.parametrize("is_done", [False, True])
def test_dies_at_the_write_it_was_told(tmp_path: Path, is_done: bool) -> None:
    with dying_broker(tmp_path / "data") as broker:
        # The first write of a new broker makes a name of its data's folder durable.
        assert not broker.start(Death(1, is_done))
        assert not broker.is_running
        assert broker.start(Death(10_000, is_done))
        assert not broker.wait(0.01)
        broker.stop()


def test_complains_of_a_broker_that_ends_otherwise(tmp_path: Path) -> None:
    with dying_broker(tmp_path / "data", "--no-such-flag") as broker, pytest.raises(BrokerFailure, match="status 2"):
        broker.start()


def test_is_not_left_behind(tmp_path: Path) -> None:
    with dying_broker(tmp_path / "data") as broker:
        broker.start()
        address = broker.pulsar
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_a_death_says_where_it_is() -> None:
    assert str(Death(7, is_done=True)) == "behind disk write 7"
    assert str(Death(7, is_done=False, stall_seconds=0.02)) == "instead of disk write 7, after 20 ms"
