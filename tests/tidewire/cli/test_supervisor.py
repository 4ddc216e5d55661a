"""`tidewire broker --processes N` on etcd: one address, one ready line, and nothing that stays behind."""

import errno
import json
import os
import signal
import subprocess
from collections.abc import Collection, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from time import monotonic

import pytest
import trio
import trio.testing

import tidewire
from broker.addresses import Address
from broker.config import load_settings
from tests.support.http import HEALTH, request
from tests.support.kafka_processes import wait_all_run
from tests.support.processes import (
    BROKER_COMMAND,
    FREE_ADDRESSES,
    FREE_PORTS,
    RunningBroker,
    children_of,
    running_broker,
)
from tests.tidewire.cli.cluster.conftest import states
from tidewire.cli.broker_http import BrokerHttp
from tidewire.cli.cluster.pids import Process, opened, wait_ended
from tidewire.cli.local_etcd import EtcdProcess
from tidewire.cli.stop_signals import STOP_SIGNALS, StopSignals
from tidewire.cli.supervisor import STOP_SECONDS_MAX, _Child, _Ended, _supervise

SECONDS_MAX = 60
BROKERS = ["broker-1", "broker-1-2", "broker-1-3"]
TOPICS = [f"persistent://public/default/{number}" for number in range(8)]


@contextmanager
def processes(etcd: EtcdProcess | None, folder: Path, count: int) -> Iterator[RunningBroker]:
    """Run so many brokers behind one command. The settings file says how many, as a user might write it.

    Without an etcd, they share the embedded store.
    """
    config = folder / "broker.toml"
    config.write_text(f'cluster = "{folder.name}"\nprocesses = {count}\nsession_timeout_seconds = 5\n')
    place = "embedded" if etcd is None else f"etcd://{etcd.endpoint}"
    with running_broker(folder / "data", "--metadata", place, "--config", str(config)) as supervisor:
        yield supervisor


@contextmanager
def held(pids: Collection[int]) -> Iterator[list[Process]]:
    """Hold on to running processes."""
    with ExitStack() as stack:
        found = [stack.enter_context(opened(pid)) for pid in pids]
        yield [process for process in found if process is not None]


def shown(address: Address) -> dict[str, int]:
    """Return how many topics each broker owns, as the broker at this address says."""
    (line,) = BrokerHttp(str(address)).lines("/admin/v2/cluster", {})
    view = json.loads(line)
    assert set(states(view).values()) == {"running"}
    return {broker["broker"]: broker["claims"]["topics"] for broker in view["brokers"]}


@pytest.mark.parametrize("metadata", ["etcd", "embedded"])
async def test_clients_begin_at_one_address_and_use_all_processes(
    metadata: str, etcd_server: EtcdProcess, tmp_path: Path
) -> None:
    """C5, C21, E17: each topic has one owner, and what is killed comes back while clients go on."""
    etcd = etcd_server if metadata == "etcd" else None
    with processes(etcd, tmp_path, 3) as supervisor, trio.fail_after(SECONDS_MAX):
        pids = children_of(supervisor)
        assert sorted(pids) == BROKERS
        async with (
            tidewire.connect(supervisor.service_url, reconnect_seconds_max=0.2) as client,
            AsyncExitStack() as stack,
        ):
            producers = [await stack.enter_async_context(client.producer(topic)) for topic in TOPICS]
            for producer in producers:
                await producer.send(b"before")
            owned = await trio.to_thread.run_sync(shown, supervisor.http)
            assert list(owned) == BROKERS
            assert sum(owned.values()) == len(TOPICS)
            assert sum(count > 0 for count in owned.values()) > 1
            victim = max(owned, key=owned.__getitem__)
            os.kill(pids[victim], signal.SIGKILL)
            for producer in producers:
                await producer.send(b"behind")
            for topic in TOPICS:
                consumer = await stack.enter_async_context(client.consumer(topic, "s"))
                assert [(await consumer.receive()).value for _ in range(2)] == [b"before", b"behind"]
        # Its topics may be served by others before it is started again.
        await trio.to_thread.run_sync(wait_all_run, supervisor, 3)
        again = children_of(supervisor)
        assert {name for name in BROKERS if again[name] != pids[name]} == {victim}
    assert "has ended (killed by SIGKILL). It is started again." in supervisor.stderr
    assert "Traceback" not in supervisor.stderr


async def test_a_stopped_process_gets_no_connection(etcd_server: EtcdProcess, tmp_path: Path) -> None:
    """C23: whoever connects to the common address is answered by another process, each time."""
    with processes(etcd_server, tmp_path, 2) as supervisor, trio.fail_after(SECONDS_MAX):
        stopped = children_of(supervisor)["broker-1"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            for _ in range(50):
                assert (await request(supervisor.http, "GET", HEALTH)).body == b"ok"
        finally:
            os.kill(stopped, signal.SIGCONT)


def test_the_death_of_the_supervisor_ends_its_processes(etcd_server: EtcdProcess, tmp_path: Path) -> None:
    """C23: kill -9 leaves nothing behind, so the same command starts again."""
    with processes(etcd_server, tmp_path, 2) as supervisor:
        with held(children_of(supervisor).values()) as children:
            assert len(children) == 2
            supervisor.kill()
            assert wait_ended(children, SECONDS_MAX) == []
        supervisor.start()
        assert len(children_of(supervisor)) == 2


def test_a_stop_ends_all_processes_also_stopped_ones(etcd_server: EtcdProcess, tmp_path: Path) -> None:
    """The status is 0, and it takes no longer than is promised, even if a process does not react."""
    with processes(etcd_server, tmp_path, 2) as supervisor, held(children_of(supervisor).values()) as children:
        children[0].send(signal.SIGSTOP)
        began = monotonic()
        supervisor.stop()
        assert monotonic() - began < STOP_SECONDS_MAX + SECONDS_MAX / 2
        assert wait_ended(children, 0) == []


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (("--processes", "0", "--metadata", "etcd://127.0.0.1:1"), 2, "--processes cannot be '0'"),
        (("--processes", "2", "--metadata", "etcd://127.0.0.1:1", "--pulsar", "192.0.2.1:0",
          "--allow-unauthenticated"), 1, "Cannot listen on 192.0.2.1:0"),
        (("--processes", "2", "--metadata", "etcd://127.0.0.1:1", "--metadata-connect-seconds-max", "0.2",
          *FREE_PORTS), 1, "The metadata store is not available"),
    ],
)  # fmt: skip
def test_what_cannot_start_is_told_and_ends(
    tmp_path: Path, arguments: tuple[str, ...], status: int, sentence: str
) -> None:
    done = subprocess.run(
        [*BROKER_COMMAND, "--data-dir", str(tmp_path / "data"), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, ""), done
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


class StartedLate:
    """A process that exists only when the command is being stopped. Its start, once begun, cannot be cancelled."""

    def __init__(self) -> None:
        self.was_told = False
        self.stdout: trio.abc.ReceiveStream = trio.testing.memory_stream_one_way_pair()[1]
        self._ended = trio.Event()

    def terminate(self) -> None:
        self.was_told = True
        self._ended.set()

    kill = terminate

    async def wait(self) -> int:
        await self._ended.wait()
        return 0


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    """SIGTERM and SIGINT reach this object during the test."""
    before = {each: signal.getsignal(each) for each in STOP_SIGNALS}
    taken = StopSignals(0.0, lambda: None)
    taken.take()
    yield taken
    for each, handler in before.items():
        signal.signal(each, handler)


async def test_a_stop_ends_a_process_that_is_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock, signals: StopSignals
) -> None:
    """C23: for example one that had ended and is started again at that moment."""
    started: list[StartedLate] = []

    async def start_late(*_command: object, **_settings: object) -> StartedLate:
        signal.raise_signal(signal.SIGTERM)
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        started.append(StartedLate())
        return started[-1]

    monkeypatch.setattr(trio.lowlevel, "open_process", start_late)
    flags = {"data_dir": tmp_path, "processes": 2, **FREE_ADDRESSES}
    await _supervise(load_settings(flags, None), [], signals)
    assert [process.was_told for process in started] == [True, True]


@pytest.mark.parametrize("is_first", [False, True])
async def test_a_process_that_cannot_be_started_is_tried_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
    capsys: pytest.CaptureFixture[str],
    is_first: bool,
) -> None:
    """E11: the machine has no memory for it, so one broker is missing. Only a first start gives up."""
    began: list[float] = []

    async def refuse(*_command: object, **_settings: object) -> None:
        await trio.lowlevel.checkpoint()
        began.append(trio.current_time())
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(trio.lowlevel, "open_process", refuse)
    child, all_ready = _Child(load_settings({"data_dir": tmp_path}, None), 1, [], []), trio.Event()
    if is_first:
        with pytest.raises(_Ended):
            await child.keep(all_ready)
    else:
        all_ready.set()
        with trio.move_on_after(1.6):
            await child.keep(all_ready)
    assert len(began) == (1 if is_first else 4)
    assert "The process of broker-1-2 cannot be started: Cannot allocate memory." in capsys.readouterr().err


class Ended:
    """A process that has said this on its standard output, and has ended."""

    def __init__(self, said: bytes) -> None:
        self.stdout = trio.testing.MemoryReceiveStream()
        self.stdout.put_data(said)
        self.stdout.put_eof()

    async def wait(self) -> int:
        return 1


@pytest.mark.parametrize("kafka", ["127.0.0.1:9092", "none"])
async def test_a_process_whose_address_was_taken_meanwhile_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock, kafka: str
) -> None:
    """E11: its ports are the system's choice, so any connection of this machine may have one of them now."""
    said = {"pulsar": "127.0.0.1:40001", "http": "127.0.0.1:40002", "kafka": "127.0.0.1:40003"}
    if kafka == "none":
        del said["kafka"]
    ready = " ".join(["ready", *(f"{name}={address}" for name, address in said.items()), "data=d\n"])
    outputs = [ready.encode(), b"", b"", b""]
    addresses: list[dict[str, str]] = []

    async def start(command: list[str], **_settings: object) -> Ended:
        await trio.lowlevel.checkpoint()
        flags = {name: f"--{name}" for name in FREE_ADDRESSES}
        addresses.append({name: command[command.index(flag) + 1] for name, flag in flags.items() if flag in command})
        return Ended(outputs[len(addresses) - 1])

    monkeypatch.setattr(trio.lowlevel, "open_process", start)
    settings = load_settings({"data_dir": tmp_path, "kafka": kafka}, None)
    child, all_ready = _Child(settings, 1, [], []), trio.Event()
    all_ready.set()
    with trio.move_on_after(0.6):
        await child.keep(all_ready)
    free = dict.fromkeys(said, "127.0.0.1:0")
    assert addresses == [free, said, free]
