from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.blocking_peer import Answer, BlockingPeer
from tests.tidewire.spark.readable import SERVICE, Readable
from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.errors import ConnectFailed, ConnectionLost, OperationTimedOut, ProtocolViolation, TidewireError
from tidewire.protocol.lookup import LOOKUP_REDIRECTS_MAX
from tidewire.protocol.refusals import TopicNotFound, refusal
from tidewire.spark.brokers import Brokers, ask_persistently
from tidewire.spark.connection import BlockingConnection
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

LOOKUP = pb.BaseCommand.LOOKUP
TOPIC = "persistent://public/default/x"


def answering(world: Readable, answers: Sequence[pb.BaseCommand]) -> None:
    """Answer all lookups with these in turn, and repeat the last one."""
    left = list(answers)

    def answer(command: pb.BaseCommand) -> list[bytes]:
        made = left.pop(0) if len(left) > 1 else left[0]
        made.lookup_topic_response.request_id = command.lookup_topic.request_id
        return [encode_command(made)]

    def for_peer(peer: BlockingPeer) -> Answer:
        return answer

    world.answers[LOOKUP] = for_peer


def connected_to(world: Readable) -> list[tuple[BrokerAddress, BrokerAddress | None]]:
    return [(address, proxied_to) for address, proxied_to, _ in world.peers]


def test_a_topic_at_the_service_address_needs_one_connection_which_ends_with_the_block() -> None:
    world = Readable()
    with world.brokers() as brokers:
        assert brokers.owner_of(TOPIC) is brokers.owner_of(TOPIC)
        ((_, _, peer),) = world.peers
        assert not peer.is_closed
    assert peer.is_closed


def test_redirects_are_followed_as_told_and_each_broker_is_connected_to_once() -> None:
    world = Readable()
    one, two = BrokerAddress("one", 1), BrokerAddress("two", 2)
    answering(
        world,
        [
            commands.lookup_redirect(0, "pulsar://one:1"),
            commands.lookup_redirect(0, str(SERVICE), authoritative=False),
            commands.lookup_connect(0, "pulsar://two:2"),
        ],
    )
    with world.brokers() as brokers:
        assert brokers.owner_of(TOPIC).address == two
    assert connected_to(world) == [(SERVICE, None), (one, None), (two, None)]
    asked = [
        (at, command.lookup_topic.authoritative) for at, _, peer in world.peers for command in peer.received_of(LOOKUP)
    ]
    assert asked == [(SERVICE, False), (SERVICE, False), (one, True)]
    assert all(peer.is_closed for _, _, peer in world.peers)


def test_a_broker_behind_a_proxy_is_reached_through_it() -> None:
    world = Readable()
    answering(world, [commands.lookup_connect(0, "pulsar://inside:6650", proxy_through_service_url=True)])
    with world.brokers() as brokers:
        brokers.owner_of(TOPIC)
    assert connected_to(world) == [(SERVICE, None), (SERVICE, BrokerAddress("inside", 6650))]


def test_brokers_that_send_each_other_on_for_ever_are_left() -> None:
    world = Readable()
    answering(world, [commands.lookup_redirect(0, str(SERVICE))])
    with world.brokers() as brokers, pytest.raises(ProtocolViolation, match=r"redirected the lookup of .* 20 times"):
        brokers.owner_of(TOPIC)
    assert len(world.commands_of(LOOKUP)) == LOOKUP_REDIRECTS_MAX


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (
            commands.lookup_connect(0, "nowhere"),
            "no valid address for the broker of persistent://public/default/x: 'nowhere'",
        ),
        (commands.lookup_connect(0, ""), "named no valid address for the broker of persistent://public/default/x: ''"),
        (
            pb.BaseCommand(
                type=pb.BaseCommand.LOOKUP_RESPONSE,
                lookup_topic_response=pb.CommandLookupTopicResponse(
                    request_id=0, response=pb.CommandLookupTopicResponse.Failed
                ),
            ),
            "does not say why",
        ),
        (commands.lookup_failed(0, pb.ServerError.ServiceNotReady, "no owner"), r"no owner \[ServiceNotReady\]"),
    ],
)
def test_an_answer_that_leads_nowhere_is_one_sentence(answer: pb.BaseCommand, complaint: str) -> None:
    world = Readable()
    answering(world, [answer])
    with world.brokers() as brokers, pytest.raises(TidewireError, match=complaint):
        brokers.owner_of(TOPIC)


def test_an_owner_that_cannot_be_reached_is_named_with_who_named_it() -> None:
    world = Readable()
    answering(world, [commands.lookup_connect(0, "pulsar://gone:1")])
    reached = world.brokers()

    def connect(address: BrokerAddress, proxied_to: BrokerAddress | None) -> BlockingConnection:
        if address == BrokerAddress("gone", 1):
            raise ConnectFailed(f"no broker can be reached at {address}: nobody there")
        return reached._connect(address, proxied_to)

    with Brokers(world.options, connect) as brokers, pytest.raises(ConnectFailed) as caught:
        brokers.owner_of(TOPIC)
    assert str(caught.value) == (
        "no broker can be reached at pulsar://gone:1: nobody there; "
        f"pulsar://service:6650 names it as the broker of {TOPIC}"
    )


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ConnectFailed("refused"), "refused; check option service_url, and that a broker runs there"),
        (ProtocolViolation("no frame"), "no frame; does option service_url name the port for pulsar://"),
    ],
)
def test_when_the_named_address_is_no_brokers_its_option_is_named(error: TidewireError, advice: str) -> None:
    def connect(address: BrokerAddress, proxied_to: BrokerAddress | None) -> BlockingConnection:
        raise error

    with Brokers(Readable().options, connect) as brokers, pytest.raises(type(error)) as caught:
        brokers.owner_of(TOPIC)
    assert str(caught.value).startswith(advice)


@pytest.mark.parametrize("failure", [ConnectFailed, ConnectionLost, OperationTimedOut])
def test_the_next_of_several_brokers_is_asked_when_one_cannot_be_reached(failure: type[TidewireError]) -> None:
    """C21: for lookups and for all else; when none is there, each was tried once and all are named."""
    world = Readable()
    dead = BrokerAddress("dead", 1)
    options = replace(world.options, service=(dead, SERVICE))
    reached = world.brokers()
    tried: list[BrokerAddress] = []

    def connect(address: BrokerAddress, proxied_to: BrokerAddress | None) -> BlockingConnection:
        tried.append(address)
        if address == dead:
            raise failure(f"no broker can be reached at {address}")
        return reached._connect(address, proxied_to)

    with Brokers(options, connect) as brokers:
        assert brokers.owner_of(TOPIC).address == SERVICE
        assert brokers.service().address == SERVICE
    assert tried == [dead, SERVICE]

    options = replace(options, service=(dead, BrokerAddress("gone", 2)))

    def fail(address: BrokerAddress, _proxied_to: BrokerAddress | None) -> BlockingConnection:
        raise ConnectFailed(f"no broker can be reached at {address}")

    with Brokers(options, fail) as brokers, pytest.raises(ConnectFailed) as caught:
        brokers.owner_of(TOPIC)
    assert str(caught.value) == (
        "none of the brokers pulsar://dead:1, pulsar://gone:2 can be reached; the last attempt: no broker can be "
        "reached at pulsar://gone:2; check option service_url, and that a broker runs there"
    )


@pytest.mark.parametrize(
    "error",
    [refusal(pb.ServiceNotReady, "moving"), ConnectFailed("owner"), ConnectionLost("x"), OperationTimedOut("x")],
)
def test_what_may_pass_is_asked_again_over_new_connections(error: TidewireError) -> None:
    """D17: a batch is planned while a segment is handed over, or its owner was just killed."""
    world = Readable()
    asked: list[Brokers] = []

    def ask(brokers: Brokers) -> int:
        asked.append(brokers)
        if len(asked) < 3:
            raise error
        return len(asked)

    assert ask_persistently(world.brokers, ask, 30) == 3
    assert len(world.peers) == 3
    assert all(peer.is_closed for _, _, peer in world.peers)


def test_a_wrong_address_and_what_does_not_pass_are_told_at_once() -> None:
    attempts: list[int] = []

    def unreachable() -> Brokers:
        attempts.append(1)

        def connect(address: BrokerAddress, proxied_to: BrokerAddress | None) -> BlockingConnection:
            raise ConnectFailed("nobody listens there")

        return Brokers(Readable().options, connect)

    with pytest.raises(ConnectFailed, match="check option service_url"):
        ask_persistently(unreachable, lambda brokers: None, 30)

    def refuse(brokers: Brokers) -> None:
        attempts.append(2)
        raise refusal(pb.TopicNotFound, "no such topic")

    with pytest.raises(TopicNotFound):
        ask_persistently(Readable().brokers, refuse, 30)
    assert attempts == [1, 2]
