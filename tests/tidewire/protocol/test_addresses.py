import pytest

from tidewire.protocol.addresses import BrokerAddress, parse_address
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
