"""`tidewire bench`: throughput, percentiles and a plot, against any broker that speaks Pulsar's protocol.

The load comes from one process, which is often the limit. So a broker is at least as fast as the figures say.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidewire.cli.endings import Interrupted, one_sentence
from tidewire.cli.produce import SERVICE_URL_DEFAULT, Codec, ServiceUrl

if TYPE_CHECKING:
    import tidewire
    from tidewire.cli.bench.loads import Load
    from tidewire.cli.bench.measuring import Measuring

app: Final = typer.Typer(help="Measure a broker: throughput, latencies and a plot.", no_args_is_help=True)

Topic = Annotated[
    str, typer.Argument(help="topic://... (create it first) or persistent://TENANT/NAMESPACE/NAME", show_default=False)
]
Seconds = Annotated[float, typer.Option("--seconds", min=0.1, help="How long to measure.")]
WarmUp = Annotated[float, typer.Option("--warm-up", min=0.0, help="Seconds before that, which do not count.")]
Size = Annotated[int, typer.Option("--size", min=16, help="Bytes of each message's value; they do not compress.")]
Keys = Annotated[int, typer.Option("--keys", min=0, help="Use this many keys in turn; 0 for none.")]
Compress = Annotated[Codec, typer.Option("--compression", help="Compress the messages.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


@app.command("produce")
def produce(
    topic: Topic,
    seconds: Seconds = 10.0,
    warm_up: WarmUp = 2.0,
    size: Size = 1024,
    rate: Annotated[float | None, typer.Option("--rate", min=0.001, help="Messages a second.")] = None,
    in_flight: Annotated[int, typer.Option("--in-flight", min=1, help="Most unanswered messages.")] = 100,
    keys: Keys = 1000,
    compression: Compress = Codec.NONE,
    as_json: AsJson = False,
    service_url: ServiceUrl = SERVICE_URL_DEFAULT,
) -> None:
    """Send messages, and measure each until the broker has stored it."""
    with one_sentence("tidewire bench"):
        from tidewire.cli.bench import loads

        load = loads.Load(topic, size, rate, in_flight, keys, compression.value)
        _run("produce", "messages", ["send"], loads.produce, load, seconds, warm_up, service_url, as_json=as_json)


@app.command("consume")
def consume(
    topic: Topic,
    seconds: Seconds = 10.0,
    warm_up: WarmUp = 2.0,
    size: Size = 1024,
    rate: Annotated[float, typer.Option("--rate", min=0.001, help="Messages a second that the command sends.")] = 1000,
    in_flight: Annotated[int, typer.Option("--in-flight", min=1, help="Most unanswered messages.")] = 100,
    keys: Keys = 1000,
    compression: Compress = Codec.NONE,
    stored: Annotated[
        bool, typer.Option("--stored", help="Send nothing. Read what is there, as fast as it comes.")
    ] = False,
    as_json: AsJson = False,
    service_url: ServiceUrl = SERVICE_URL_DEFAULT,
) -> None:
    """Send messages at a rate, and measure each until a reader in the same process has it."""
    with one_sentence("tidewire bench"):
        from tidewire.cli.bench import loads

        load = loads.Load(topic, size, rate, in_flight, keys, compression.value)
        names, job = ([], loads.drain) if stored else (["delivery"], loads.deliver)
        _run("consume", "messages", names, job, load, seconds, warm_up, service_url, as_json=as_json, stored=stored)


@app.command("transactions")
def transactions(
    topic: Topic,
    messages: Annotated[int, typer.Option("--messages", min=1, help="Messages in each transaction.")] = 10,
    seconds: Seconds = 10.0,
    warm_up: WarmUp = 2.0,
    size: Size = 1024,
    rate: Annotated[float | None, typer.Option("--rate", min=0.001, help="Transactions a second.")] = None,
    in_flight: Annotated[int, typer.Option("--in-flight", min=1, help="Most open transactions.")] = 10,
    keys: Keys = 1000,
    compression: Compress = Codec.NONE,
    as_json: AsJson = False,
    service_url: ServiceUrl = SERVICE_URL_DEFAULT,
) -> None:
    """Run transactions, and measure each from its begin to its durable commit."""
    with one_sentence("tidewire bench"):
        from tidewire.cli.bench import loads

        load = loads.Load(topic, size, rate, in_flight, keys, compression.value)

        async def job(client: "tidewire.Client", load: "Load", measuring: "Measuring") -> None:
            await loads.transact(client, load, measuring, messages)

        names = ["transaction", "commit"]
        _run(
            "transactions", "transactions", names, job, load, seconds, warm_up, service_url, as_json=as_json,
            messages_each=messages,
        )  # fmt: skip


def _run(
    command: str,
    unit: str,
    names: list[str],
    job: "Callable[[tidewire.Client, Load, Measuring], Awaitable[None]]",
    load: "Load",
    seconds: float,
    warm_up: float,
    service_url: str,
    *,
    as_json: bool,
    **further: Any,  # noqa: ANN401 - what is reported beside the load
) -> None:
    from tidewire.cli.bench import report
    from tidewire.cli.bench.measuring import Measuring
    from tidewire.cli.clients import run_client
    from tidewire.cli.live import LiveLine
    from tidewire.client.background import background_tasks

    line = LiveLine()
    result: report.Result | None = None

    async def story(client: "tidewire.Client") -> None:
        nonlocal result
        measuring = Measuring(names, warm_up_seconds=warm_up, seconds=seconds)
        async with background_tasks() as tasks:
            tasks.start_soon(line.keep, measuring.progress)
            try:
                await job(client, load, measuring)
            finally:
                settings = _settings(command, load, warm_up) | further
                what = _in_words(settings)
                series = list(measuring.series.values())
                result = report.Result(what, settings, unit, measuring.done, measuring.bytes, measuring.seconds, series)

    def show() -> None:
        if result is not None:
            is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
            typer.echo(report.as_json(result) if as_json else report.as_text(result, is_unicode=is_unicode))

    try:
        run_client(service_url, story, line)
    except Interrupted:
        show()
        raise
    show()


def _settings(command: str, load: "Load", warm_up: float) -> dict[str, Any]:
    return {
        "bench": command,
        "topic": load.topic,
        "size_bytes": load.size,
        "rate": load.rate,
        "in_flight_max": load.in_flight,
        "keys": load.keys,
        "compression": load.compression,
        "warm_up_seconds": warm_up,
    }


def _in_words(settings: Mapping[str, Any]) -> str:
    pace = "as fast as it is answered" if settings["rate"] is None else f"{settings['rate']:,g} a second"
    if settings.get("stored"):
        return f"{settings['topic']}: reading what is stored, after {settings['warm_up_seconds']:g} s of warm-up"
    each = settings.get("messages_each")
    what = (
        f"{settings['size_bytes']:,} bytes a message"
        if each is None
        else f"{each} messages of {settings['size_bytes']:,} bytes each"
    )
    return (
        f"{settings['topic']}: {what}, {pace}, at most {settings['in_flight_max']} in flight, "
        f"after {settings['warm_up_seconds']:g} s of warm-up"
    )
