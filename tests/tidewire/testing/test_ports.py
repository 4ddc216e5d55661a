"""Ports that stay free."""

import socket

import pytest

from tidewire.testing.ports import ReservedPort


def test_a_reserved_port_is_refused_to_clients_and_others_and_given_to_the_broker() -> None:
    """No program takes the port of a killed broker, but the next broker gets it."""
    port = ReservedPort()
    host, number = port.address.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(number)), 60)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, int(number)))
    # `create_server` sets the option that the broker's listener has.
    socket.create_server((host, int(number))).close()
    port.release()
    with socket.socket() as other:
        other.bind((host, int(number)))
