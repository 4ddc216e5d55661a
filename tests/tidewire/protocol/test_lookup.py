import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.errors import ProtocolViolation
from tidewire.protocol.lookup import LOOKUP_REDIRECTS_MAX, Lookup, Route, named_address
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

TOPIC = "persistent://public/default/x"
SERVICE = BrokerAddress("service", 6650)
Answer = pb.CommandLookupTopicResponse


def connect(url: str, *, proxied: bool = False) -> Answer:
    return commands.lookup_connect(1, url, proxy_through_service_url=proxied).lookup_topic_response


def redirect(url: str, *, authoritative: bool = True) -> Answer:
    return commands.lookup_redirect(1, url, authoritative=authoritative).lookup_topic_response


def test_a_lookup_begins_at_the_service_and_follows_redirects_as_told() -> None:
    lookup = Lookup(TOPIC, SERVICE)
    assert lookup.route == Route(SERVICE)
    assert lookup.ask(7) == commands.lookup(TOPIC, 7, authoritative=False)
    one = BrokerAddress("one", 1)
    lookup.hear(redirect(str(one)), SERVICE)
    assert (lookup.route, lookup.is_done) == (Route(one), False)
    assert lookup.ask(8) == commands.lookup(TOPIC, 8, authoritative=True)
    lookup.hear(redirect(str(SERVICE), authoritative=False), one)
    assert lookup.ask(9) == commands.lookup(TOPIC, 9, authoritative=False)
    lookup.hear(connect("pulsar://two:2"), SERVICE)
    assert (lookup.route, lookup.is_done) == (Route(BrokerAddress("two", 2)), True)


@pytest.mark.parametrize(
    ("url", "route"),
    [
        ("pulsar://inside:6650", Route(SERVICE, BrokerAddress("inside", 6650))),
        # The proxy names itself: there is nobody behind it.
        (str(SERVICE), Route(SERVICE)),
    ],
)
def test_a_broker_behind_a_proxy_is_reached_through_the_service(url: str, route: Route) -> None:
    lookup = Lookup(TOPIC, SERVICE)
    lookup.hear(connect(url, proxied=True), SERVICE)
    assert lookup.route == route


def test_brokers_that_send_each_other_round_are_left() -> None:
    lookup = Lookup(TOPIC, SERVICE)
    for _ in range(LOOKUP_REDIRECTS_MAX - 1):
        lookup.hear(redirect(str(SERVICE)), SERVICE)
    with pytest.raises(ProtocolViolation, match=f"the brokers redirected the lookup of {TOPIC} 20 times"):
        lookup.hear(redirect(str(SERVICE)), SERVICE)


@pytest.mark.parametrize("url", ["", "nowhere", "http://x", "pulsar+ssl://x:1", "pulsar://x:y"])
def test_who_names_no_address_is_told_with_what_was_said(url: str) -> None:
    complaint = f"^{SERVICE} named no valid address for the broker of {TOPIC}: '{url.replace('+', '.')}'"
    with pytest.raises(ProtocolViolation, match=complaint):
        Lookup(TOPIC, SERVICE).hear(connect(url), SERVICE)
    with pytest.raises(ProtocolViolation, match=complaint):
        named_address(url, SERVICE, TOPIC)


answers = st.builds(
    lambda url, response, proxied, authoritative: Answer(
        request_id=1,
        broker_service_url=url,
        response=response,
        proxy_through_service_url=proxied,
        authoritative=authoritative,
    ),
    st.sampled_from(["pulsar://a:1", "pulsar://b:2", "pulsar://[::1]", str(SERVICE)]) | st.text(max_size=20),
    st.sampled_from([Answer.Redirect, Answer.Connect]),
    st.booleans(),
    st.booleans(),
)


@given(said=st.lists(answers, min_size=LOOKUP_REDIRECTS_MAX, max_size=LOOKUP_REDIRECTS_MAX))
def test_whatever_brokers_say_a_lookup_ends(said: list[Answer]) -> None:
    lookup = Lookup(TOPIC, SERVICE)
    asked = 0
    try:
        for answer in said:
            asked += 1
            lookup.hear(answer, lookup.route.address)
            if lookup.is_done:
                break
    except ProtocolViolation:
        return
    assert lookup.is_done
    assert asked <= LOOKUP_REDIRECTS_MAX
