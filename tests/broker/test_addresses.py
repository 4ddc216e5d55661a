"""Addresses: one spelling for each kind, and the addresses that clients get."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.addresses import Address, advertised_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:6650", Address("127.0.0.1", 6650)),
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("[::1]:8080", Address("::1", 8080)),
        ("[fe80::1%eth0]:8080", Address("fe80::1%eth0", 8080)),
        ("localhost:65535", Address("localhost", 65535)),
        ("broker-1.example.org:1", Address("broker-1.example.org", 1)),
    ],
)
def test_an_address_parses_and_prints(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


@given(st.ip_addresses(), st.integers(0, 65535))
def test_every_ip_address_round_trips(ip: object, port: int) -> None:
    assert Address.parse(str(Address(str(ip), port))) == Address(str(ip), port)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "HOST:PORT"),
        ("127.0.0.1", "HOST:PORT"),
        ("127.0.0.1:", "HOST:PORT"),
        ("127.0.0.1:65536", "HOST:PORT"),
        ("127.0.0.1:-1", "HOST:PORT"),
        ("127.0.0.1:+1", "HOST:PORT"),
        ("127.0.0.1:٣", "HOST:PORT"),
        ("127.0.0.1: 1", "HOST:PORT"),
        (":6650", "host is missing"),
        ("::1:6650", "brackets"),
        ("[::1:6650", "brackets"),
        ("[localhost]:6650", "IPv6"),
        ("[127.0.0.1]:6650", "IPv6"),
        ("a b:6650", "neither"),
        ("-a:6650", "neither"),
        ("a..b:6650", "neither"),
        ("http//x:6650", "neither"),
        ("a." * 130 + "b:1", "neither"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Address.parse(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"])
def test_loopback_is_this_machine_alone(host: str) -> None:
    assert Address(host, 1).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "localhost.example.org", "my-machine"])
def test_anything_else_may_be_reached_by_others(host: str) -> None:
    assert not Address(host, 1).is_loopback


def test_clients_are_told_the_listeners_own_address() -> None:
    bound = Address("127.0.0.1", 41234)
    assert advertised_address(None, bound=bound, reached=Address("127.0.0.1", 41234)) == bound


@pytest.mark.parametrize(
    ("wildcard", "reached"), [("0.0.0.0", "192.0.2.7"), ("::", "2001:db8::7"), ("::", "::ffff:192.0.2.7")]
)
def test_a_listener_on_every_network_is_told_as_the_client_reached_it(wildcard: str, reached: str) -> None:
    told = advertised_address(None, bound=Address(wildcard, 6650), reached=Address(reached, 6650))
    assert told == Address(reached.removeprefix("::ffff:"), 6650)


def test_what_the_operator_says_wins_and_port_0_is_the_listeners() -> None:
    bound = Address("0.0.0.0", 41234)
    reached = Address("10.0.0.1", 41234)
    assert advertised_address(Address("b.example", 7000), bound=bound, reached=reached) == Address("b.example", 7000)
    assert advertised_address(Address("b.example", 0), bound=bound, reached=reached) == Address("b.example", 41234)
