"""`tidewire broker`: run one broker until a signal stops it.

With `--processes N` it runs N brokers (`supervisor`), and says the same as one. With `--again`, which `tidewire cluster
start` gives, a broker that was replaced by the others starts again. It ends first, because its journal has another
writer now. With `--parent PID`, which `tidewire.testing` gives, the broker is killed when that process ends.

The broker prints `ready pulsar=HOST:PORT http=HOST:PORT data=DIR` on standard output when it accepts connections, with
`kafka=HOST:PORT` before `data` if it serves Kafka's clients.
Everything else goes to standard error. SIGTERM and SIGINT stop it cleanly within 5 s, whatever its load. An operator's
mistake gets one message and exit status 2.
"""

import logging
import os
import sys
import threading
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TextIO, cast

import typer

from tidewire.cli.daemon import make_importable
from tidewire.cli.log_stream import LogStream
from tidewire.cli.parent import ParentEnded, end_with_parent
from tidewire.cli.systemd import READY, STOPPING, tell_systemd

if TYPE_CHECKING:
    import trio
    from structlog.typing import EventDict, Processor

    from broker.config import BrokerSettings

EXIT_USAGE: Final = 2
EXIT_FAILED: Final = 1

STOP_SECONDS_MAX: Final = 4.5
"""From a signal to the end of the process, whatever its load: half a second less than users are promised."""

Option = typer.Option


def command(
    config: Annotated[Path | None, Option(help="TOML file with settings, such as data_dir for --data-dir.")] = None,
    data_dir: Annotated[str | None, Option(help="Folder for ledgers and metadata (default: ./data).")] = None,
    pulsar: Annotated[str | None, Option(help="HOST:PORT for Pulsar clients (default: 127.0.0.1:6650).")] = None,
    http: Annotated[
        str | None, Option(help="HOST:PORT for administration and metrics (default: 127.0.0.1:8080).")
    ] = None,
    kafka: Annotated[str | None, Option(help="HOST:PORT for Kafka clients, or none (default: 127.0.0.1:9092).")] = None,
    advertised_kafka: Annotated[str | None, Option(help="HOST:PORT that Kafka clients are told to connect to.")] = None,
    kafka_namespace: Annotated[
        str | None, Option(help="Namespace whose topics Kafka clients see (default: public/default).")
    ] = None,
    kafka_partitions: Annotated[
        str | None, Option(help="Partitions of a topic that a Kafka client's first use creates (default: 1).")
    ] = None,
    http_hosts: Annotated[
        str | None, Option(help="Host names that HTTP clients may use for this broker, separated by commas.")
    ] = None,
    advertised_pulsar: Annotated[str | None, Option(help="HOST:PORT that clients are told to connect to.")] = None,
    internal: Annotated[
        str | None, Option(help="HOST:PORT for the other brokers on this data folder (default: none, it is alone).")
    ] = None,
    broker_id: Annotated[
        str | None, Option(help="This broker's id, unique in its cluster (default: broker-1).")
    ] = None,
    metadata: Annotated[
        str | None, Option(help="Metadata store: embedded (default), or etcd://HOST:PORT[,HOST:PORT].")
    ] = None,
    metadata_connect_seconds_max: Annotated[
        str | None, Option(help="How long to try to reach etcd at the start (default: 60).")
    ] = None,
    session_timeout_seconds: Annotated[
        str | None, Option(help="How long a silent broker keeps what it owns (default: 10).")
    ] = None,
    allow_unauthenticated: Annotated[
        bool, Option("--allow-unauthenticated", help="Allow listeners that other machines can reach.")
    ] = False,
    journal_file_bytes_max: Annotated[str | None, Option(help="Size of a journal file, such as 64MiB.")] = None,
    ledger_bytes_max: Annotated[str | None, Option(help="Size at which a topic rolls to a new ledger.")] = None,
    ledger_age_seconds_max: Annotated[str | None, Option(help="Age at which a topic rolls to a new ledger.")] = None,
    message_bytes_max: Annotated[
        str | None, Option(help="Size of the largest message or batch (default: 5MiB).")
    ] = None,
    connections_max: Annotated[str | None, Option(help="Most client connections at a time (default: 10000).")] = None,
    client_memory_bytes_max: Annotated[
        str | None, Option(help="Memory for what clients have sent or not yet read (default: 512MiB).")
    ] = None,
    deduplication: Annotated[
        bool, Option("--deduplication", help="Deduplicate what producers resend on persistent:// topics too.")
    ] = False,
    default_initial_segments: Annotated[
        str | None, Option(help="Segments of a new scalable topic (default: 1).")
    ] = None,
    transaction_coordinators: Annotated[
        str | None, Option(help="Number of transaction coordinator ids (default: 16).")
    ] = None,
    txn_timeout_seconds_max: Annotated[
        str | None, Option(help="The longest transaction timeout that a client may ask for (default: 3600).")
    ] = None,
    txn_retention_seconds: Annotated[
        str | None, Option(help="How long a transaction's outcome is kept (default: 60).")
    ] = None,
    retention_minutes: Annotated[
        str | None, Option(help="Minutes for which acknowledged messages are kept; -1: forever (default: -1).")
    ] = None,
    retention_megabytes: Annotated[
        str | None, Option(help="MiB of acknowledged messages that each topic keeps; -1: all (default: -1).")
    ] = None,
    segment_retention_seconds: Annotated[
        str | None, Option(help="Minimum time to keep split and merged segments (default: 604800, a week).")
    ] = None,
    consumer_session_grace_seconds: Annotated[
        str | None,
        Option(help="How long an ordered consumer keeps its segments after its connection is lost (default: 60)."),
    ] = None,
    auto_scale: Annotated[
        str | None, Option(help="Split and merge topics by load and consumers: true (default) or false.")
    ] = None,
    metrics_labels: Annotated[
        str | None, Option(help="How fine /metrics is: topic (default), namespace or none.")
    ] = None,
    metrics_series_max: Annotated[
        str | None, Option(help="Topics that /metrics shows one by one; others are summed (default: 1000).")
    ] = None,
    processes: Annotated[
        str | None, Option(help="Brokers to run as one cluster on this machine, at one address (default: 1).")
    ] = None,
    inherited: Annotated[str | None, Option(hidden=True)] = None,
    again: Annotated[bool, Option("--again", hidden=True)] = False,
    parent: Annotated[int | None, Option(hidden=True)] = None,
    log_format: Annotated[
        str | None, Option(metavar="text|json", help="How to write the log (default: text). json: one object a line.")
    ] = None,
    log_level: Annotated[
        str | None,
        Option(metavar="debug|info|warning|error", help="The least level to log (default: info)."),
    ] = None,
    verbose: Annotated[
        bool, Option("--verbose", "-v", help="Log what topics and connections do: --log-level debug.")
    ] = False,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    A setting may also come from the environment as TIDEWIRE_NAME, or from the file given by --config.
    """
    flags: dict[str, Any] = {
        name: value
        for name, value in locals().items()
        if name not in ("config", "verbose", "inherited", "again", "parent") and value is not None
    }
    for switch in ("allow_unauthenticated", "deduplication"):
        if not flags[switch]:
            # A switch that was not given must not override the environment and the file.
            del flags[switch]
    if verbose and log_level is not None:
        _end(EXIT_USAGE, "--verbose is --log-level debug. Give one of them.")
    if verbose:
        flags["log_level"] = "debug"
    if parent is not None:
        try:
            end_with_parent(parent)
        except ParentEnded as ended:
            _end(EXIT_FAILED, str(ended))
    make_importable()
    from broker.config import ConfigurationError, load_settings

    try:
        settings = load_settings(flags, config)
    except ConfigurationError as mistake:
        _end(EXIT_USAGE, *mistake.problems)
    if settings.processes > 1:
        from tidewire.cli.supervisor import run_processes

        raise SystemExit(run_processes(settings, flags, config))
    import trio

    from broker.allocator import keep_memory_together
    from broker.front_ends import Ready, Shared
    from broker.garbage import GarbageCollector
    from broker.log_limit import LogLimit
    from broker.loop_monitor import LoopMonitor
    from broker.main import serve
    from broker.startup_errors import operator_message
    from storage.errors import Fenced
    from tidewire.cli.stop_signals import StopSignals

    limit = LogLimit(monotonic)
    # Brokers behind one command share its standard error.
    name = None if inherited is None else settings.broker_id
    _configure_log(settings, limit, name)
    shared: Shared | None = None
    supervisor: int | None = None
    signals = StopSignals(STOP_SECONDS_MAX, _end_now)
    if inherited is not None:
        *sockets, supervisor = map(int, inherited.split(","))
        shared = Shared(*sockets)

    addresses: list[str] = []

    def say_ready(ready: Ready) -> None:
        served = {"pulsar": ready.pulsar, "http": ready.http, "kafka": ready.kafka}
        bound = {name: str(address) for name, address in served.items() if address is not None}
        addresses[:] = [word for name, address in bound.items() for word in (f"--{name}", address)]
        typer.echo(
            " ".join(["ready", *(f"{name}={address}" for name, address in bound.items()), f"data={settings.data_dir}"])
        )
        if inherited is None:
            tell_systemd(READY)

    async def until_told_to_end() -> None:
        async with trio.open_nursery() as nursery:
            stop, ready = trio.Event(), trio.Event()

            async def stop_when_told() -> None:
                async with trio.open_nursery() as waiting:
                    if supervisor is not None:
                        waiting.start_soon(_wait_orphaned, supervisor, waiting.cancel_scope)
                    await signals.wait()
                    waiting.cancel_scope.cancel()
                end_within(STOP_SECONDS_MAX)
                if inherited is None:
                    tell_systemd(STOPPING)
                stop.set()
                if not ready.is_set():
                    # The broker serves no client yet, so there is nothing to write.
                    nursery.cancel_scope.cancel()

            nursery.start_soon(stop_when_told)
            loop = LoopMonitor()
            running = partial(serve, settings, version("tidewire"), stop, loop=loop, shared=shared)
            reached = await nursery.start(running)
            garbage = GarbageCollector()
            garbage.look_at_all()
            say_ready(reached)
            ready.set()
            with loop.watching():
                async with trio.open_nursery() as duties:
                    # The collector belongs to the whole process. Only here does the broker own the process.
                    duties.start_soon(garbage.run)
                    await stop.wait()
                    duties.cancel_scope.cancel()

    async def with_limited_log() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limit.run)
            await until_told_to_end()
            nursery.cancel_scope.cancel()

    # This must come before the first thread is started. It does nothing without glibc.
    keep_memory_together()
    signals.take()
    message, was_replaced = None, False
    try:
        trio.run(with_limited_log)
    except* Exception as group:
        message = operator_message(group, settings)
        if message is None:
            raise
        was_replaced = group.subgroup(Fenced) is not None
    if message is None:
        signals.ignore()
        return
    # Python before 3.11.4 wraps what is raised inside `except*` in a group, which shows as a traceback.
    if again and addresses and was_replaced:
        _start_again(message, addresses)
    _end(EXIT_FAILED, message)


def _start_again(message: str, addresses: Sequence[str]) -> NoReturn:
    """Replace this process by a new one of the same command, at the same addresses. It keeps its number."""
    typer.echo(f"tidewire broker: {message}\ntidewire broker: It is started again now.", err=True)
    # Nobody may read standard output any more: it was for the first ready line.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    command_line = [sys.executable, "-m", "tidewire.cli", *sys.argv[1:], *addresses]
    os.execv(sys.executable, command_line)  # noqa: S606 - our own command, without a shell


async def _wait_orphaned(pipe: int, scope: "trio.CancelScope") -> None:
    """Cancel `scope` when the supervisor has ended, however that happened."""
    import trio

    # Nobody writes to the pipe, so it becomes readable only at its end.
    await trio.lowlevel.wait_readable(pipe)
    scope.cancel()


def end_within(seconds: float) -> threading.Timer:
    """End the process after `seconds`, whatever its event loop does. It is harmless if the process ends earlier.

    This is like a kill, which loses nothing. Messages whose acknowledgements were not yet durable are redelivered.
    """
    timer = threading.Timer(seconds, _end_now)
    timer.daemon = True
    timer.start()
    return timer


def _end_now() -> None:
    sys.stderr.write(
        "tidewire broker: Stopped before all cursors were written. Some acknowledged messages will be redelivered.\n"
    )
    sys.stderr.flush()
    os._exit(0)


def _configure_log(settings: "BrokerSettings", limit: "Processor", broker: str | None) -> None:
    import structlog

    renderer: Processor = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    if settings.log_format == "json":
        renderer = structlog.processors.JSONRenderer(default=str)

    def add_broker(_logger: object, _method: str, event: "EventDict") -> "EventDict":
        return event if broker is None else {**event, "broker": broker}

    structlog.configure(
        processors=[
            limit,
            add_broker,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.log_level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", LogStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )


def _end(status: int, *messages: str) -> None:
    for message in messages:
        typer.echo(f"tidewire broker: {message}", err=True)
    raise SystemExit(status)
