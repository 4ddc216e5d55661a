"""`tidewire broker --processes N`: N brokers of one machine, as one command with one address.

    supervisor   opens the listening sockets that clients begin at, and accepts nothing itself
      ├ broker-1      inherits the sockets, and has addresses of its own besides
      ├ broker-1-2    lookups lead each client to the owner's own address
      └ ...

The brokers are a cluster like any other, with one data folder and one metadata store. All of them accept on the
inherited sockets. So a broker that is stopped or busy gets no connection there.

| what happens                                   | what follows                                                       |
|------------------------------------------------|--------------------------------------------------------------------|
| a broker ends before all were ready            | the others are stopped, and the command ends with its status       |
| a broker ends later                            | it is started again on its addresses, after RESTART_SECONDS        |
| it cannot be started again for now             | the same, while the other brokers serve                            |
| it ends before it is ready there               | the next start takes free addresses: others may use these now      |
| a broker ends with the status of a wrong call  | the others are stopped, and the command ends with that status      |
| SIGTERM or SIGINT                              | all brokers get SIGTERM; after STOP_SECONDS_MAX they are killed    |
| the supervisor ends in any other way           | its end of a pipe closes; the brokers read that, and stop          |

The first broker has the id of a single broker. So its journal and its topics are those of the time before.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio
import typer

from tidewire.cli.endings import EXIT_FAILED, EXIT_USAGE
from tidewire.cli.stop_signals import StopSignals
from tidewire.cli.systemd import READY, STOPPING, tell_systemd

if TYPE_CHECKING:
    from broker.addresses import Address
    from broker.config import BrokerSettings

STOP_SECONDS_MAX: Final = 5.0
"""From SIGTERM to the brokers' ends. They promise less."""
RESTART_SECONDS: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0)
"""The pauses before a broker is started again: after its first end, its second one, and so on."""
STEADY_SECONDS: Final = 60.0
"""A broker that ran for so long begins with the first pause again."""

_READY: Final = re.compile(rb"ready pulsar=(\S+) http=(\S+) (?:kafka=(\S+) )?data=.+\n")
_LINE_BYTES_MAX: Final = 16 * 1024


class _Ended(Exception):
    """A broker has ended, and the command ends with its status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def run_processes(settings: "BrokerSettings", flags: Mapping[str, Any], config: Path | None) -> int:
    """Run the brokers until a signal. Return the exit status.

    Args:
        settings: the settings of all of them together.
        flags: the flags that were given, by field name.
        config: the settings file, if one was given.
    """
    from broker.listening import ListenerError

    given: list[str] = [] if config is None else ["--config", str(config)]
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        given += [flag] if value is True else [flag, str(value)]
    status = 0
    signals = StopSignals(STOP_SECONDS_MAX, _end_now)
    signals.take()
    try:
        trio.run(_supervise, settings, given, signals)
    except* ListenerError as group:
        status = EXIT_FAILED
        typer.echo(f"tidewire broker: {_first(group)}", err=True)
    except* _Ended as group:
        ended = _first(group)
        assert isinstance(ended, _Ended)
        status = ended.status
    signals.ignore()
    return status


def _end_now() -> None:
    # The pipe closes, so the brokers stop too.
    os._exit(EXIT_FAILED)


async def _supervise(settings: "BrokerSettings", given: Sequence[str], signals: StopSignals) -> None:
    from broker.listening import open_listener

    async with AsyncExitStack() as stack:
        sockets = {}
        for name, address in _addresses(settings).items():
            listener = await open_listener(address, f"--{name}", is_optional=name == "kafka")
            await stack.enter_async_context(listener)
            sockets[name] = listener.socket
        pipe, held = os.pipe()
        stack.callback(os.close, held)
        stack.callback(os.close, pipe)
        inherited = [*(socket.fileno() for socket in sockets.values()), pipe]
        children = [_Child(settings, number, given, inherited) for number in range(settings.processes)]
        all_ready = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                for child in children:
                    nursery.start_soon(child.keep, all_ready)
                names = {name: _name(socket) for name, socket in sockets.items()}
                nursery.start_soon(_say_ready, children, settings, names, all_ready)
                await signals.wait()
                tell_systemd(STOPPING)
                nursery.cancel_scope.cancel()
        finally:
            # Behind the nursery, because the start of a process cannot be cancelled.
            with trio.CancelScope(shield=True):
                await _stop(children)


async def _say_ready(
    children: Sequence["_Child"], settings: "BrokerSettings", addresses: Mapping[str, str], all_ready: trio.Event
) -> None:
    for child in children:
        await child.ready.wait()
    all_ready.set()
    bound = " ".join(f"{name}={address}" for name, address in addresses.items())
    typer.echo(f"ready {bound} data={settings.data_dir}")
    tell_systemd(READY)


async def _stop(children: Sequence["_Child"]) -> None:
    processes = [child.process for child in children if child.process is not None]
    for process in processes:
        process.terminate()
    with trio.move_on_after(STOP_SECONDS_MAX):
        for process in processes:
            await process.wait()
    for process in processes:
        process.kill()
        await process.wait()


class _Child:
    """One of the brokers."""

    def __init__(self, settings: "BrokerSettings", number: int, given: Sequence[str], inherited: Sequence[int]) -> None:
        self.name = settings.broker_id if number == 0 else f"{settings.broker_id}-{number + 1}"
        self.ready = trio.Event()
        self.process: trio.Process | None = None
        # The system chooses the ports of the first start. Later starts use them again.
        self._free = {name: str(address._replace(port=0)) for name, address in _addresses(settings).items()}
        self._addresses: Mapping[str, str] = self._free
        self._inherited = inherited
        self._given = [
            *given,
            *("--processes", "1", "--broker-id", self.name),
            *("--connections-max", str(max(1, settings.connections_max // settings.processes))),
            *("--client-memory-bytes-max", str(_share(settings))),
            *("--inherited", ",".join(map(str, inherited))),
        ]
        if settings.metadata == "embedded":
            internal = settings.internal or settings.pulsar._replace(host="127.0.0.1")
            self._given += ["--internal", str(internal._replace(port=0))]
        if settings.advertised_pulsar is not None:
            # Port 0 stands for the broker's own port.
            self._given += ["--advertised-pulsar", str(settings.advertised_pulsar._replace(port=0))]
        if settings.advertised_kafka is not None:
            self._given += ["--advertised-kafka", str(settings.advertised_kafka._replace(port=0))]

    async def keep(self, all_ready: trio.Event) -> None:
        """Run the broker, and start it again when it has ended, until cancelled.

        Raises:
            _Ended: it makes no sense to start it again.
        """
        ends = 0
        while True:
            began = trio.current_time()
            try:
                status = await self._run()
                what = f"has ended ({_described(status)})"
            except OSError as refused:
                # Often there is no memory for it, which may be why it ended.
                status, what = EXIT_FAILED, f"cannot be started: {refused.strerror}"
                if not all_ready.is_set():
                    typer.echo(f"tidewire broker: The process of {self.name} {what}.", err=True)
            if status == EXIT_USAGE or not all_ready.is_set():
                raise _Ended(status if status > 0 else EXIT_FAILED)
            if trio.current_time() - began >= STEADY_SECONDS:
                ends = 0
            pause = RESTART_SECONDS[min(ends, len(RESTART_SECONDS) - 1)]
            ends += 1
            typer.echo(
                f"tidewire broker: The process of {self.name} {what}. It is started again"
                + (f" in {pause:g} s." if pause else "."),
                err=True,
            )
            await trio.sleep(pause)

    async def _run(self) -> int:
        """Run the broker once. Return its status."""
        command = [sys.executable, "-m", "tidewire.cli", "broker", *self._given]
        self.process = await trio.lowlevel.open_process(
            [*command, *(word for name, address in self._addresses.items() for word in (f"--{name}", address))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pass_fds=self._inherited,
            # Signals of the terminal come from the supervisor alone.
            start_new_session=True,
        )
        output = self.process.stdout
        assert output is not None
        async with output:
            said = b""
            while not said.endswith(b"\n") and len(said) < _LINE_BYTES_MAX and (more := await output.receive_some()):
                said += more
            line = _READY.fullmatch(said)
            if line is None:
                self._addresses = self._free
            else:
                # Without Kafka's clients there are two addresses.
                self._addresses = dict(zip(self._free, map(bytes.decode, filter(None, line.groups())), strict=True))
                self.ready.set()
            return await self.process.wait()


def _addresses(settings: "BrokerSettings") -> dict[str, "Address"]:
    """Return where clients begin, by the listeners' names, in the order in which the brokers inherit them."""
    known = {"pulsar": settings.pulsar, "http": settings.http, "kafka": settings.kafka}
    return {name: address for name, address in known.items() if address is not None}


def _share(settings: "BrokerSettings") -> int:
    from broker.config import CLIENT_MEMORY_BYTES_MIN

    return max(CLIENT_MEMORY_BYTES_MIN, int(settings.client_memory_bytes_max) // settings.processes)


def _name(socket: trio.socket.SocketType) -> str:
    from broker.addresses import Address

    return str(Address(*socket.getsockname()[:2]))


def _described(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
