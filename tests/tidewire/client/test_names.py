import pytest

from tidewire.client.names import BrokerUrl, is_scalable, parse_broker_url, partition_topic, segment_topic
from tidewire.protocol.errors import InvalidName


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("pulsar://127.0.0.1:6650", BrokerUrl("127.0.0.1", 6650)),
        ("pulsar://broker.example", BrokerUrl("broker.example", 6650)),
        ("pulsar://[::1]:7000", BrokerUrl("::1", 7000)),
        ("pulsar://host:1/", BrokerUrl("host", 1)),
    ],
)
def test_an_address_is_read(url: str, expected: BrokerUrl) -> None:
    assert parse_broker_url(url) == expected
    assert parse_broker_url(str(expected)) == expected


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
        parse_broker_url(url)


def test_tls_is_refused_by_name() -> None:
    with pytest.raises(InvalidName, match="does not speak TLS"):
        parse_broker_url("pulsar+ssl://host:6651")


def test_the_two_kinds_of_topics_are_told_apart() -> None:
    assert is_scalable("topic://public/default/x")
    assert not is_scalable("persistent://public/default/x")
    for other in ("x", "segment://t/n/x/0000-ffff-0", "non-persistent://t/n/x", ""):
        with pytest.raises(InvalidName):
            is_scalable(other)


def test_segments_and_partitions_are_named_as_the_broker_names_them() -> None:
    assert segment_topic("topic://t/n/x", 0x8000, 0xFFFF, 12) == "segment://t/n/x/8000-ffff-12"
    assert partition_topic("persistent://t/n/x", 3) == "persistent://t/n/x-partition-3"
