"""A broker that is killed and restarted many times, quickly, and that can kill itself at a chosen disk write.

    with dying_broker(tmp_path / "data", "--ledger-bytes-max", "1MiB") as broker:
        broker.start()
        broker.kill()                                        # kill -9, from outside
        broker.start(Death(write=40, is_done=False))         # kill -9, from inside, instead of its 40th write
        broker.wait()

`dying_process` explains how. It runs what `tidewire broker` runs. `processes.running_broker` starts a broker as a user
does.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from broker.addresses import Address
from tests.support.dying_process import Death, DyingProcess
from tidewire.testing.ports import ReservedPort


class DyingBroker(DyingProcess):
    """See the module's docstring; made by `dying_broker`."""

    def __init__(self, data_dir: Path, arguments: Sequence[str]) -> None:
        """Set up; nothing runs yet."""
        super().__init__(
            "tidewire.cli",
            ["broker.main"],
            name=f"the broker on {data_dir}",
            stderr_path=data_dir.with_name(data_dir.name + ".stderr"),
        )
        # Otherwise a client that connects to the dead broker could take one of its ports before it starts again.
        self._ports = [ReservedPort() for _ in range(3)]
        self.pulsar, self.http, self.kafka = (Address.parse(port.address) for port in self._ports)
        self._data_dir = data_dir
        self._arguments = tuple(arguments)

    @property
    def service_url(self) -> str:
        """The URL for clients of the Pulsar protocol."""
        return f"pulsar://{self.pulsar}"

    def start(self, death: Death | None = None) -> bool:
        """Start it on the same data and addresses, and wait until it is ready. Return False if it killed itself before.

        Raises:
            BrokerFailure: it ended in another way, or was not ready within START_SECONDS_MAX.
        """
        arguments = [
            *("broker", "--data-dir", str(self._data_dir)),
            *("--pulsar", str(self.pulsar), "--http", str(self.http), "--kafka", str(self.kafka)),
            *self._arguments,
        ]
        return self.launch(arguments, death) is not None

    def close(self) -> None:
        """Kill it if it runs, and give its ports back. It cannot be started again."""
        super().close()
        for port in self._ports:
            port.release()


@contextmanager
def dying_broker(data_dir: Path, *arguments: str) -> Iterator[DyingBroker]:
    """Set up a broker on `data_dir`. `arguments` are further flags. It is killed at the end if it runs."""
    broker = DyingBroker(data_dir, arguments)
    try:
        yield broker
    finally:
        broker.close()
