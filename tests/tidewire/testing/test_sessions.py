"""Several sessions at once, and how they end: nothing of one reaches another, and nothing stays behind."""

import os
import signal
from pathlib import Path

import pytest

from tests.tidewire.testing.sessions import SESSION_SECONDS_MAX, run, running
from tidewire.cli.cluster.pids import opened, wait_ended

TALK = '''
import json

import anyio
import tidewire

TOPIC = "persistent://public/default/common"


def test_talk(tidewire_broker):
    """Do what the other process asks for."""

    async def story():
        async with tidewire.connect(tidewire_broker.pulsar) as client, client.producer(TOPIC) as producer:
            print("\\n>", tidewire_broker.pid, tidewire_broker.kafka, flush=True)
            while (told := input()) != "end":
                match told.split():
                    case ["send", text]:
                        await producer.send(text.encode())
                        print("> sent", flush=True)
                    case ["restart"]:
                        tidewire_broker.restart()
                        print(">", tidewire_broker.pid, flush=True)
                    case ["pause"]:
                        tidewire_broker.pause()
                        print("> paused", flush=True)
                    case ["read", count]:
                        async with client.consumer(TOPIC, "s") as consumer:
                            values = [(await consumer.receive()).value.decode() for _ in range(int(count))]
                            print(">", *values, flush=True)

    anyio.run(story)
'''


@pytest.mark.timeout(300)
def test_sessions_do_not_disturb_each_other_and_leave_nothing(tmp_path: Path) -> None:
    """Two sessions use one topic name at once, and one of them kills its broker. Each ends its own."""
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        (folder / "test_talk.py").write_text(TALK)
    with running(folders[0]) as first, running(folders[1]) as second:
        (first_pid, first_kafka), (second_pid, second_kafka) = first.hear().split(), second.hear().split()
        assert first_kafka != second_kafka
        first.tell("send a")
        second.tell("send x")
        assert (first.hear(), second.hear()) == ("sent", "sent")
        first.tell("restart")
        second.tell("send y")
        restarted = first.hear()
        assert second.hear() == "sent"
        assert restarted not in (first_pid, second_pid)
        first.tell("read 1")
        second.tell("read 2")
        assert (first.hear(), second.hear()) == ("a", "x y")
        with opened(int(restarted)) as one, opened(int(second_pid)) as other:
            assert one is not None
            assert other is not None
            first.tell("end")
            assert first.end()[0] == pytest.ExitCode.OK
            assert wait_ended([one], 0) == []
            second.tell("send z")
            assert second.hear() == "sent"
            second.tell("end")
            assert second.end()[0] == pytest.ExitCode.OK
            assert wait_ended([other], 0) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_paused", [False, True])
def test_the_broker_ends_when_pytest_is_killed(tmp_path: Path, is_paused: bool) -> None:
    """Kill -9 of pytest ends the broker too, also one that is stopped and so handles nothing itself."""
    (tmp_path / "test_talk.py").write_text(TALK)
    with running(tmp_path) as session:
        pid, _ = session.hear().split()
        with opened(int(pid)) as broker:
            assert broker is not None
            if is_paused:
                session.tell("pause")
                assert session.hear() == "paused"
            os.kill(session.process.pid, signal.SIGKILL)
            assert wait_ended([broker], SESSION_SECONDS_MAX) == []


@pytest.mark.timeout(300)
def test_each_worker_has_a_broker(users: pytest.Pytester) -> None:
    """pytest-xdist: the workers' brokers run at the same time, at addresses and in folders of their own."""
    users.makepyfile("""
        import os, pathlib

        def test_place(tidewire_broker, tmp_path_factory):
            here = pathlib.Path(os.environ["PLACES"], os.environ["PYTEST_XDIST_WORKER"])
            here.write_text(f"{tidewire_broker.kafka} {tmp_path_factory.getbasetemp()}")
    """)
    places = users.mkdir("places")
    with pytest.MonkeyPatch.context() as setting:
        setting.setenv("PLACES", str(places))
        run(users, "-p", "xdist", "--dist", "each", "--tx", "2*popen").assert_outcomes(passed=2)
    found = [set(column) for column in zip(*(place.read_text().split() for place in places.iterdir()), strict=True)]
    assert [len(column) for column in found] == [2, 2]
