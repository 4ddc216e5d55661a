"""`tidewire cluster`: start and stop a cluster on this machine, and show any cluster.

`start`, `stop` and `kill` work on processes of this machine, so they need the data folder. All other commands ask a
broker over HTTP. Any broker of the cluster answers for all of them.
"""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer

from tidewire.cli.cluster.addresses import (
    DATA_DIR_DEFAULT,
    HTTP_DEFAULT,
    DataDir,
    Http,
    NoClusterStarted,
    addresses,
    named,
)
from tidewire.cli.endings import EXIT_FAILED, CommandFailed, UsageError, one_sentence, while_somebody_reads
from tidewire.cli.output import Json, Watch, note, print_json, tell

if TYPE_CHECKING:
    from tidewire.cli.cluster.folder import Cluster

app: Final = typer.Typer(
    help="Run several brokers as one cluster on this machine. Watch and steer any cluster.", no_args_is_help=True
)

COMMAND: Final = "tidewire cluster"
BROKERS_DEFAULT: Final = 3
BROKERS_MAX: Final = 64
EMBEDDED: Final = "embedded"
OWN_ETCD: Final = "etcd"
PULSAR_DEFAULT: Final = "127.0.0.1:6650"
KAFKA_DEFAULT: Final = "127.0.0.1:9092"
HEALTH: Final = "/admin/v2/brokers/health"
UNAVAILABLE: Final = 503

Broker = Annotated[str, typer.Argument(help="The broker's id, from `tidewire cluster status`.", show_default=False)]


@app.command("start")
def start(
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1, max=BROKERS_MAX, help=f"How many brokers run (default: those of before, at first {BROKERS_DEFAULT})."
        ),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            help="Metadata store: embedded, etcd to start one for the cluster, or etcd://HOST:PORT[,HOST:PORT] "
            "(default: that of before, at first embedded)."
        ),
    ] = None,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    pulsar: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of the first broker for Pulsar clients; the others get the next ports, or free ones if it "
            f"is 0 (default: {PULSAR_DEFAULT})."
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(help=f"HOST:PORT of the first broker for administration, likewise (default: {HTTP_DEFAULT})."),
    ] = None,
    kafka: Annotated[
        str | None,
        typer.Option(
            help=f"HOST:PORT of the first broker for Kafka clients, likewise, or none (default: {KAFKA_DEFAULT})."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with further settings for all brokers.", exists=True, dir_okay=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Start the brokers of a cluster that do not run, and return when all are ready.

    They run until `tidewire cluster stop`. Their logs and pid files are in DATA_DIR/cluster.
    """
    with one_sentence(COMMAND):
        from tidewire.cli.cluster.folder import ClusterFolder
        from tidewire.cli.cluster.starting import start_cluster

        folder = ClusterFolder(data_dir.absolute())
        if metadata is not None:
            _checked(metadata)
        with folder.locked():
            before = folder.read()
            place = _checked(metadata or (before.metadata if before is not None else EMBEDDED))
            count = brokers or (len(before.brokers) if before is not None else BROKERS_DEFAULT)
            if before is not None and place != before.metadata:
                raise UsageError(
                    f"The cluster in {data_dir} keeps its metadata in {before.metadata}, which cannot change. Leave "
                    "--metadata out, or choose another --data-dir."
                )
            cluster = _planned(before, count, place, pulsar, http, kafka, config)
            names = list(cluster.brokers)[:count]
            start_cluster(folder, cluster, names, partial(note, COMMAND) if as_json else typer.echo)
        first = cluster.brokers[names[0]].http
        words = [f"service-url={cluster.service_url}", f"http={first}"]
        if cluster.bootstrap_servers:
            words.append(f"kafka={cluster.bootstrap_servers}")
        tell(
            " ".join(["ready", *words, f"data={data_dir}"]),
            as_json,
            serviceUrl=cluster.service_url,
            http=first,
            bootstrapServers=cluster.bootstrap_servers or None,
            dataDir=str(data_dir),
            brokers=[{"broker": name, **cluster.brokers[name].served} for name in names],
        )


@app.command("stop")
def stop(
    brokers: Annotated[
        list[str], typer.Argument(help="Stop only these brokers, and not etcd (default: all).", show_default=False)
    ] = [],  # noqa: B006 - typer copies it
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
) -> None:
    """Stop the brokers that `tidewire cluster start` started, and their etcd. Nothing is lost."""
    with one_sentence(COMMAND):
        from tidewire.cli.cluster.folder import ClusterFolder
        from tidewire.cli.cluster.starting import Ended, Ending, stop_cluster

        folder = ClusterFolder(data_dir.absolute())
        # Only then it is locked, because that would make the folder.
        if not folder.is_used:
            raise CommandFailed(f"No cluster was started in {data_dir}. Name its folder with --data-dir.")
        with folder.locked():
            known = folder.started()
            unknown = [broker for broker in brokers if broker not in known]
            if unknown:
                raise UsageError(f"No broker {unknown[0]} was started in {data_dir}. There are: {', '.join(known)}.")
            ended: list[Ended] = []
            stop_cluster(folder, ended.append if as_json else lambda one: typer.echo(one.sentence), brokers)
        if as_json:
            print_json({how.value: [one.name for one in ended if one.ending is how] for how in Ending})


@app.command("status")
def status(
    watch: Watch = False,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Show the brokers of a cluster, what each of them owns, and how many transactions are open."""
    with one_sentence(COMMAND), while_somebody_reads():
        from tidewire.cli.cluster import status as shown

        views = shown.views(addresses(data_dir, http), watch=watch)
        if as_json:
            shown.print_lines(views)
        else:
            shown.print_tables(views, live=watch)


@app.command("doctor")
def doctor(
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Say what is wrong with a cluster, and what to do. The exit status is 0 if nothing is wrong, otherwise 1.

    A broker examines the cluster. If no broker runs, the files in --data-dir are examined. Nothing is changed.
    """
    with one_sentence(COMMAND), while_somebody_reads():
        from tidewire.cli.cluster.doctor import examined, text_of

        try:
            asked = addresses(data_dir, http)
        except NoClusterStarted:
            # The files of a broker that was started by hand can be examined, too.
            asked = []
        report = examined(asked, None if named(http) else data_dir.absolute())
        for line in [json.dumps(report)] if as_json else text_of(report):
            typer.echo(line)
    if report["findings"]:
        raise SystemExit(EXIT_FAILED)


@app.command("move")
def move(
    topic: Annotated[
        str,
        typer.Argument(
            help="segment://..., persistent://..., or topic://... for all its segments.", show_default=False
        ),
    ],
    broker: Annotated[str, typer.Argument(help="The id of the broker that should own it.", show_default=False)],
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Hand a topic over to another broker. Its clients follow by themselves."""
    _ask(data_dir, http, "POST", "/move", {"topic": topic, "to": broker})
    tell(f"moved {topic} to {broker}", as_json, topic=topic, broker=broker)


@app.command("unload")
def unload(
    topic: Annotated[
        str,
        typer.Argument(
            help="segment://..., persistent://..., or topic://... for all its segments.", show_default=False
        ),
    ],
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Let the owner of a topic release it. The next client that needs it decides where it goes."""
    _ask(data_dir, http, "POST", "/unload", {"topic": topic})
    tell(f"unloaded {topic}", as_json, topic=topic, unloaded=True)


@app.command("drain")
def drain(broker: Broker, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None) -> None:
    """Let a broker hand over everything that it owns, and take nothing new. Then it can be stopped."""
    _ask(data_dir, http, "POST", f"/brokers/{quote(broker, safe='')}/drain")
    tell(f"drained {broker}", as_json, broker=broker, isDrained=True)


@app.command("undrain")
def undrain(broker: Broker, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None) -> None:
    """Let a drained broker take topics again. A restart does the same."""
    _ask(data_dir, http, "DELETE", f"/brokers/{quote(broker, safe='')}/drain")
    tell(f"{broker} takes topics again", as_json, broker=broker, isDrained=False)


@app.command("balance")
def balance(as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None) -> None:
    """Spread the topics over all brokers again, for example after a restart of each. Their clients follow."""
    with one_sentence(COMMAND):
        from tidewire.cli.cluster.status import views

        (view,) = views(addresses(data_dir, http), watch=False)
    handed_over = {}
    for broker in [one["broker"] for one in view["brokers"] if one["state"] == "running"]:
        (answer,) = _ask(data_dir, http, "POST", f"/brokers/{quote(broker, safe='')}/balance")
        handed_over[broker] = moved = json.loads(answer)["moved"]
        if not as_json:
            typer.echo(f"{broker} handed over {moved} topic{'' if moved == 1 else 's'}")
    if as_json:
        print_json({"handedOver": handed_over})


@app.command("kill")
def kill(broker: Broker, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT) -> None:
    """Kill a broker of this machine as a crash would (kill -9), to see what the others do."""
    with one_sentence(COMMAND):
        from tidewire.cli.cluster.killing import kill_broker

        pid = kill_broker(data_dir.absolute(), broker)
        tell(f"killed {broker}, which had the pid {pid}", as_json, broker=broker, pid=pid)


def _ask(data_dir: Path, http: str | None, method: str, path: str, content: object = None) -> list[bytes]:
    """Ask the first broker that answers and is well. Return the lines of its answer."""
    with one_sentence(COMMAND):
        from tidewire.cli.asking import NotAccepted, NotAnswered
        from tidewire.cli.broker_http import BrokerHttp

        asked = addresses(data_dir, http)
        for number, address in enumerate(asked, 1):
            try:
                return list(BrokerHttp(address).lines("/admin/v2/cluster" + path, {}, method=method, content=content))
            except NotAnswered:
                if number == len(asked):
                    raise
            except NotAccepted as refused:
                # A broker without a metadata session refuses everything. Another one may have its session.
                if number == len(asked) or refused.status_code != UNAVAILABLE or _is_well(address):
                    raise
    raise AssertionError("a cluster has an address")


def _is_well(address: str) -> bool:
    """Return whether the broker at this address says that it can serve."""
    from tidewire.cli.asking import NotAccepted, NotAnswered
    from tidewire.cli.broker_http import BrokerHttp
    from tidewire.cli.cluster.status import ANSWER_SECONDS_MAX

    try:
        return bool(list(BrokerHttp(address, answer_seconds_max=ANSWER_SECONDS_MAX).lines(HEALTH, {})))
    except (NotAnswered, NotAccepted):
        return False


def _planned(
    before: "Cluster | None",
    count: int,
    metadata: str,
    pulsar: str | None,
    http: str | None,
    kafka: str | None,
    config: Path | None,
) -> "Cluster":
    """Return the cluster with `count` brokers or more, each with its addresses."""
    from tidewire.cli.cluster.folder import Addresses, Cluster

    cluster = before or Cluster(metadata, pulsar or PULSAR_DEFAULT, http or HTTP_DEFAULT)
    # An earlier release served no Kafka clients, so their address can still be chosen.
    cluster.kafka = cluster.kafka or kafka or KAFKA_DEFAULT
    kept = (cluster.pulsar, cluster.http, cluster.kafka)
    if any(given not in (None, address) for given, address in zip((pulsar, http, kafka), kept, strict=True)):
        raise UsageError(
            f"The first broker of this cluster has the addresses {', '.join(kept)}, which later starts keep. Leave "
            "--pulsar, --http and --kafka out."
        )
    if config is not None:
        cluster.config = str(config.absolute())
    for number in range(count):
        addresses = cluster.brokers.setdefault(
            f"broker-{number + 1}",
            Addresses(_behind(cluster.pulsar, number, "--pulsar"), _behind(cluster.http, number, "--http")),
        )
        if addresses.kafka is None:
            addresses.kafka = _behind(cluster.kafka, number, "--kafka")
    return cluster


def _checked(metadata: str) -> str:
    from tidewire.cli.daemon import make_importable

    make_importable()
    from broker.metadata_setting import check_metadata

    try:
        return metadata if metadata == OWN_ETCD else check_metadata(metadata)
    except ValueError as mistake:
        raise UsageError(f"--metadata cannot be {metadata}: {mistake}, or etcd to start one.") from None


def _behind(first: str, number: int, flag: str) -> str:
    """Return the address `number` ports behind the first one. Kafka's may be `none` for all brokers."""
    from tidewire.cli.cluster.folder import NO_LISTENER
    from tidewire.cli.daemon import make_importable

    if first == NO_LISTENER and flag == "--kafka":
        return first

    make_importable()
    from broker.addresses import Address

    try:
        address = Address.parse(first)
        if address.is_wildcard:
            raise ValueError("clients are told this address, and nobody can connect to it; name one of this machine")
        port = address.port + number if address.port else 0
        return str(Address.parse(f"{Address(address.host, port)}"))
    except ValueError as mistake:
        raise UsageError(f"{flag} cannot be {first} for {number + 1} brokers: {mistake}.") from None
