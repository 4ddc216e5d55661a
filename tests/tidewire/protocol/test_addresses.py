import pytest

from tidewire.protocol.addresses import BrokerAddress, ServiceAddresses, parse_address, parse_addresses
from tidewire.protocol.errors import InvalidName


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("pulsar://127.0.0.1:6650", BrokerAddress("127.0.0.1", 6650)),
        ("pulsar://broker.example", BrokerAddress("broker.example", 6650)),
        ("pulsar://[::1]:7000", BrokerAddress("::1", 7000)),
        ("pulsar://host:1/", BrokerAddress("host", 1)),
    ],
)
def test_an_address_is_read(url: str, expected: BrokerAddress) -> None:
    assert parse_address(url) == expected
    assert parse_address(str(expected)) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:6650",
        "http://host:6650",
        "pulsar://",
        "pulsar://:6650",
        "pulsar://host:port",
        "pulsar://host:70000",
        "pulsar://host:6650/path",
        "pulsar://host:6650?x=y",
        "pulsar://user@host:6650",
        "pulsar://a,b:6650x",
        "pulsar://[::1",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidName):
        parse_address(url)


def test_tls_is_refused_by_name() -> None:
    with pytest.raises(InvalidName, match="requires TLS"):
        parse_address("pulsar+ssl://host:6651")


def test_an_address_is_written_as_a_url_and_for_a_proxy() -> None:
    for url, authority in (("pulsar://broker:6651/", "broker:6651"), ("pulsar://[::1]", "[::1]:6650")):
        address = parse_address(url)
        assert address.authority == authority
        assert str(address) == f"pulsar://{authority}"


A, B, C = BrokerAddress("a", 1), BrokerAddress("b", 2), BrokerAddress("c", 6650)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("pulsar://a:1", (A,)),
        ("pulsar://a:1,b:2", (A, B)),
        ("pulsar://b:2,a:1,c", (B, A, C)),
        ("pulsar://a:1,b:2,a:1/", (A, B)),
        ("pulsar://[::1]:7,a:1", (BrokerAddress("::1", 7), A)),
    ],
)
def test_several_addresses_are_read_in_order_and_each_once(url: str, expected: tuple[BrokerAddress, ...]) -> None:
    assert parse_addresses(url) == expected


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "''"),
        ("a:1,b:2", "'a:1,b:2'"),
        ("pulsar://", "'pulsar://'"),
        ("pulsar://a:1,", "'pulsar://'"),
        ("pulsar://,a:1", "'pulsar://'"),
        ("pulsar://a:1,b:x", "'pulsar://b:x'"),
        ("pulsar://a:1,pulsar://b:2", "'pulsar://pulsar://b:2'"),
        ("pulsar://a:1,b:2/path", "'pulsar://b:2/path'"),
        ("http://a:1,b:2", "'http://a:1'"),
    ],
)
def test_the_first_wrong_one_of_several_addresses_is_named(url: str, said: str) -> None:
    with pytest.raises(InvalidName, match=f"^{said} "):
        parse_addresses(url)


def test_one_address_is_used_until_it_fails() -> None:
    service = ServiceAddresses([A, B, C])
    assert (service.current, len(service), str(service)) == (A, 3, "pulsar://a:1, pulsar://b:2, pulsar://c:6650")
    for failed, current in ((A, B), (A, B), (C, B), (B, C), (C, A)):
        service.failed(failed)
        assert service.current == current
    assert B in service
    assert BrokerAddress("b", 3) not in service


def test_a_single_address_stays() -> None:
    service = ServiceAddresses([A])
    service.failed(A)
    assert service.current == A
