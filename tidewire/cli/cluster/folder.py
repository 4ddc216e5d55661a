"""What `tidewire cluster start` keeps about the cluster that it runs, in `<data>/cluster`.

    cluster.json        where metadata is kept, and each broker's addresses: later starts use them again
    lock                held by a command that starts or stops
    NAME.pid, NAME.log  of each broker; NAME is its id
    etcd/               data, log and pid file of the etcd that was started for the cluster

Only commands use this folder. The brokers do not know of it.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tidewire.cli.endings import CommandFailed

FOLDER: Final = "cluster"
PID: Final = ".pid"
NO_LISTENER: Final = "none"
"""The address of a listener that is left out."""
OWN_ETCD: Final = "etcd"
"""The metadata setting of a cluster with an etcd of its own."""


@dataclass(slots=True)
class Addresses:
    """Where a broker listens, as HOST:PORT."""

    pulsar: str
    http: str
    kafka: str | None = None
    """`none` if Kafka's clients are not served. None if an earlier release started the broker, which asked nobody."""

    @property
    def served(self) -> dict[str, str | None]:
        """The addresses by listener; None for one that is left out."""
        return {
            "pulsar": self.pulsar,
            "http": self.http,
            "kafka": None if self.kafka == NO_LISTENER else self.kafka,
        }

    @property
    def shown(self) -> str:
        """The addresses for people."""
        return " ".join(f"{name}={address}" for name, address in self.served.items() if address is not None)


@dataclass(slots=True)
class Cluster:
    """What `cluster.json` says."""

    metadata: str
    """`embedded`, `etcd` for an etcd of its own, or `etcd://HOST:PORT,...`."""
    pulsar: str
    """The first broker's address. The others have the ports behind it, or free ports if its port is 0."""
    http: str
    kafka: str | None = None
    """As `pulsar`, or `none`. None if only an earlier release started the cluster."""
    config: str | None = None
    """The settings file that all brokers get."""
    etcd_port: int = 0
    """The port of the cluster's own etcd, once it has started."""
    brokers: dict[str, Addresses] = field(default_factory=dict)
    """By id, in the order in which they were added."""

    @property
    def metadata_place(self) -> str:
        """The metadata store as the brokers' setting has it."""
        return f"etcd://127.0.0.1:{self.etcd_port}" if self.metadata == OWN_ETCD else self.metadata

    @property
    def service_url(self) -> str:
        """The URL for clients, with all brokers."""
        return "pulsar://" + ",".join(broker.pulsar for broker in self.brokers.values())

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for Kafka's clients, of all brokers that serve them; empty if none does."""
        addresses = [broker.kafka for broker in self.brokers.values()]
        return ",".join(address for address in addresses if address not in (None, NO_LISTENER))


class ClusterFolder:
    """See the module's docstring."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.path = data_dir / FOLDER

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands out for the length of the block. Makes the folder.

        Raises:
            CommandFailed: another command is at work, or the folder cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("a")
        except OSError as error:
            raise CommandFailed(f"The folder {self.path} cannot be used: {error.strerror}.") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandFailed(
                    f"Another command is starting or stopping the cluster in {self.data_dir}. Wait until it has ended."
                ) from None
            yield

    def read(self) -> Cluster | None:
        """Return what is known of the cluster; None if none was started here.

        Raises:
            CommandFailed: the file is damaged.
        """
        path = self.path / "cluster.json"
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            brokers = {name: Addresses(**addresses) for name, addresses in fields.pop("brokers").items()}
            return Cluster(**fields, brokers=brokers)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CommandFailed(f"{path} cannot be read: {error.strerror}.") from error
        except (AttributeError, KeyError, TypeError, ValueError) as damaged:
            raise CommandFailed(
                f"{path} is damaged. Stop the brokers whose pid files are beside it, remove the file, and start the "
                "cluster again."
            ) from damaged

    def write(self, cluster: Cluster) -> None:
        """Keep what is known of the cluster."""
        unfinished = self.path / "cluster.json.unfinished"
        unfinished.write_text(json.dumps(asdict(cluster), indent=2) + "\n", encoding="utf-8")
        unfinished.replace(self.path / "cluster.json")

    @property
    def is_used(self) -> bool:
        """Whether a `start` left anything here.

        Raises:
            CommandFailed: the file about the cluster is damaged.
        """
        return bool(self.started()) or self.etcd_pid_file.exists()

    def started(self) -> list[str]:
        """Return the ids of the brokers that were started here.

        Those behind a pid file are among them, although nothing else is known of what a killed start left.

        Raises:
            CommandFailed: the file about the cluster is damaged.
        """
        cluster = self.read()
        known = [] if cluster is None else list(cluster.brokers)
        noted = sorted(file.name.removesuffix(PID) for file in self.path.glob("*" + PID))
        return list(dict.fromkeys([*known, *noted]))

    def pid_file(self, broker: str) -> Path:
        """Return the path of a broker's pid file."""
        return self.path / (broker + PID)

    def log(self, broker: str) -> Path:
        """Return the path of a broker's log."""
        return self.path / f"{broker}.log"

    @property
    def etcd(self) -> Path:
        """The folder of the cluster's own etcd."""
        return self.path / "etcd"

    @property
    def etcd_pid_file(self) -> Path:
        """The pid file of that etcd."""
        return self.etcd / "etcd.pid"
