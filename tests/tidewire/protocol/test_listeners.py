import pytest
from hypothesis import given

from tests.tidewire.wire.protobufs import commands as any_commands
from tidewire.protocol.listeners import Kind, Listeners
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

PUSHES = [
    (Kind.CONSUMER, lambda i: commands.message(i, 1, 2)),
    (Kind.CONSUMER, commands.close_consumer),
    (Kind.CONSUMER, commands.reached_end_of_topic),
    (Kind.CONSUMER, lambda i: commands.consumer_error(i, pb.PersistenceError, "damaged")),
    (Kind.PRODUCER, lambda i: commands.send_receipt(i, 1, 2, 3)),
    (Kind.PRODUCER, lambda i: commands.send_error(i, 1, pb.UnknownError, "no")),
    (Kind.PRODUCER, commands.close_producer),
    (
        Kind.LAYOUT,
        lambda i: pb.BaseCommand(
            type=pb.BaseCommand.SCALABLE_TOPIC_UPDATE,
            scalable_topic_update=pb.CommandScalableTopicUpdate(session_id=i),
        ),
    ),
    (Kind.COORDINATORS, lambda i: commands.watch_tc_assignments_update(i, 1, [])),
    (
        Kind.NAMESPACE,
        lambda i: pb.BaseCommand(
            type=pb.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE,
            watch_scalable_topics_update=pb.CommandWatchScalableTopicsUpdate(watch_id=i),
        ),
    ),
]


@pytest.mark.parametrize(("kind", "push"), PUSHES)
def test_a_command_is_for_the_listener_of_its_kind_and_id(kind: Kind, push) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    listeners: Listeners[str] = Listeners()
    ids = {(other, n): listeners.attach(other, f"{other} {n}") for n in range(3) for other in Kind}
    assert len(listeners) == 3 * len(Kind)
    for n in range(3):
        assert listeners.of(push(ids[kind, n])) == f"{kind} {n}"
    assert listeners.of(push(99)) is None
    listeners.detach(kind, ids[kind, 1])
    listeners.detach(kind, ids[kind, 1])
    assert listeners.of(push(ids[kind, 1])) is None
    assert listeners.of(push(ids[kind, 2])) == f"{kind} 2"
    assert listeners.attach(kind, "new") not in {ids[kind, n] for n in range(3)}
    detached = listeners.detach_all()
    assert len(detached) == 3 * len(Kind)
    assert len(listeners) == 0
    assert listeners.of(push(ids[kind, 2])) is None


@given(command=any_commands())
def test_any_command_is_for_one_listener_or_nobody(command: pb.BaseCommand) -> None:
    listeners: Listeners[Kind] = Listeners()
    for kind in Kind:
        listeners.attach(kind, kind)
    assert listeners.of(command) in {None, *Kind}
