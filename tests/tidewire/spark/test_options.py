import pytest

from tidewire.spark.errors import InvalidOption
from tidewire.spark.options import Address, ReadOptions, parse_address

GIVEN = {"service_url": "pulsar://127.0.0.1:6650", "topic": "topic://public/default/x"}


def test_the_two_required_options_are_enough() -> None:
    options = ReadOptions.parse(GIVEN)
    assert options == ReadOptions(Address("127.0.0.1", 6650), "topic://public/default/x", 30.0)
    assert options.is_scalable


def test_names_are_compared_as_spark_does() -> None:
    given = {"SERVICE_URL": "pulsar://b", "Topic": "persistent://a/b/c/d", "operation_Timeout_seconds": "0.5"}
    assert ReadOptions.parse(given) == ReadOptions(Address("b", 6650), "persistent://a/b/c/d", 0.5)
    assert not ReadOptions.parse(given).is_scalable


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"topics": "x"}, "unknown option 'topics'; format tidewire knows service_url, topic, operation_timeout_sec"),
        ({"path": "x"}, "unknown option 'path'"),
        ({"service_url": ""}, "option service_url is missing; give it as"),
        ({"topic": ""}, "option topic is missing; give it as"),
        ({"service_url": "127.0.0.1:6650"}, "option service_url: '127.0.0.1:6650' is no address of a broker"),
        ({"service_url": "http://x"}, "expected pulsar://HOST:PORT"),
        ({"service_url": "pulsar://x:y"}, "option service_url"),
        ({"service_url": "pulsar://x:70000"}, "option service_url"),
        ({"service_url": "pulsar://x/y"}, "expected pulsar://HOST:PORT"),
        ({"service_url": "pulsar+ssl://x"}, "TLS is not spoken yet"),
        ({"topic": "x"}, "option topic: 'x' is no full name of a topic"),
        ({"topic": "topic://public/x"}, "expected topic://TENANT/NAMESPACE/NAME or persistent://"),
        ({"topic": "segment://public/default/x/0000-ffff-0"}, "is no full name of a topic"),
        ({"operation_timeout_seconds": "soon"}, "option operation_timeout_seconds: 'soon' is no number of seconds"),
        ({"operation_timeout_seconds": "0"}, "above 0 and up to 3600"),
        ({"operation_timeout_seconds": "nan"}, "above 0 and up to 3600"),
        ({"operation_timeout_seconds": "30000"}, "above 0 and up to 3600"),
    ],
)
def test_a_wrong_option_is_named(changed: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        ReadOptions.parse({**GIVEN, **changed})
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_addresses_print_as_they_are_written() -> None:
    assert str(parse_address("pulsar://[::1]")) == "[::1]:6650"
    assert str(parse_address("pulsar://broker:6651/")) == "broker:6651"
