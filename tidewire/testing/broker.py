"""The broker of a test session, and the faults that a test may ask for.

    broker.kafka, broker.pulsar, broker.http      its addresses, the same for the whole session
    broker.kill(), broker.restart()               kill -9, and a start on the same addresses and data
    broker.pause(), broker.resume()               SIGSTOP and SIGCONT: clients wait, no connection breaks
    broker.abort_transactions()                   abort what is open, as a transaction's timeout does
    broker.log_tail()                             the end of its log

| state            | kill   | restart            | pause   | resume  | mend    |
|------------------|--------|--------------------|---------|---------|---------|
| running          | killed | killed and running | paused  | running | running |
| paused           | killed | killed and running | paused  | running | running |
| killed           | killed | running            | refused | refused | running |
| ended by itself  | killed | running            | refused | refused | refused |
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidewire.testing.log import LINES, tail
from tidewire.testing.ports import ReservedPort
from tidewire.testing.process import START_SECONDS_MAX, BrokerFailed, BrokerProcess, start

_SETTING_PREFIX: Final = "TIDEWIRE_"

_OWN_OPTIONS: Final = ("--data-dir", "--pulsar", "--http", "--kafka")
"""What `TidewireBroker` chooses. Addresses and data must be this session's alone."""

_OPTIONS: Final = ("--verbose", "--journal-file-bytes-max", "4MiB")
"""Options before those of the user. Failed tests show the log. A start allocates two journal files of this size."""


class TidewireBroker:
    """See the module's docstring. The fixture `tidewire_broker` makes it."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        """Start a broker. It serves on return, and it is killed when this process ends.

        Args:
            folder: an empty folder for its data and its log.
            options: further options of `tidewire broker`. Variables of the environment do not set any.

        Raises:
            BrokerFailed: it did not start; the message says why.
        """
        for option in options:
            if option.partition("=")[0] in _OWN_OPTIONS:
                raise BrokerFailed(
                    f"The tests' broker chooses {option.partition('=')[0]} itself. Leave that option out."
                )
        self._log = folder / "broker.log"
        self._ports = {name: ReservedPort() for name in ("pulsar", "http", "kafka")}
        own = [word for name, port in self._ports.items() for word in (f"--{name}", port.address)]
        self._options = [*_OPTIONS, *options, "--data-dir", str(folder / "data"), *own]
        self._process: BrokerProcess | None = None
        self._is_paused = False
        try:
            self.restart()
        except BaseException:
            self.close()
            raise

    @property
    def kafka(self) -> str:
        """Where Kafka's clients connect, as HOST:PORT (their `bootstrap.servers`)."""
        return self._ports["kafka"].address

    @property
    def pulsar(self) -> str:
        """Where Pulsar's and Tidewire's clients connect, as pulsar://HOST:PORT."""
        return f"pulsar://{self._ports['pulsar'].address}"

    @property
    def http(self) -> str:
        """Where administration and metrics are, as http://HOST:PORT."""
        return f"http://{self._ports['http'].address}"

    @property
    def pid(self) -> int:
        """The id of its process. `restart` changes it.

        Raises:
            BrokerFailed: it does not run.
        """
        return self._running().pid

    def kill(self) -> None:
        """Kill the broker (kill -9), as a crash would. What it acknowledged is durable. Clients are refused."""
        if self._process is not None:
            self._process.kill()
            self._process = None
        self._is_paused = False

    def restart(self) -> None:
        """Kill the broker if it runs, and start it on the same addresses and data. It serves on return.

        Raises:
            BrokerFailed: it did not start.
        """
        self.kill()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_SETTING_PREFIX)}
        self._process = start(self._options, self._log, environment, seconds_max=START_SECONDS_MAX)

    def pause(self) -> None:
        """Stop the broker (SIGSTOP): it answers nothing, and connections stay open. It has stopped on return.

        Raises:
            BrokerFailed: it does not run.
        """
        self._running().pause()
        self._is_paused = True

    def resume(self) -> None:
        """Let a paused broker go on (SIGCONT).

        Raises:
            BrokerFailed: it does not run.
        """
        self._running().resume()
        self._is_paused = False

    def abort_transactions(self) -> int:
        """Abort every transaction on `topic://` topics that is open now, and return how many. The aborts are durable.

        A client learns of it when it commits, as after the transaction's timeout. Kafka's transactions stay open.

        Raises:
            BrokerFailed: the broker does not run, or is paused.
            TidewireError: an abort failed.
        """
        self._running()
        if self._is_paused:
            raise BrokerFailed("The Tidewire broker is paused, so it aborts nothing. Call resume() first.")
        # Only a test that needs it pays for the client.
        from tidewire.testing.transactions import abort_open_transactions

        return abort_open_transactions(self.http, self.pulsar)

    def log_tail(self, lines: int = LINES) -> str:
        """Return the last lines of its log, of all its lives."""
        return tail(self._log, lines)

    def mend(self) -> None:
        """Undo what a test left behind: start a killed broker, and resume a paused one.

        Raises:
            BrokerFailed: it ended by itself, or did not start.
        """
        if self._process is None:
            self.restart()
        elif self._is_paused:
            self.resume()
        else:
            self._running()

    def close(self) -> None:
        """Kill the broker and give its ports back, at the end of the session. Its folder stays."""
        self.kill()
        for port in self._ports.values():
            port.release()

    def _running(self) -> BrokerProcess:
        if self._process is None:
            raise BrokerFailed("The Tidewire broker was killed. Start it with restart() first.")
        status = self._process.status
        if status is not None:
            raise BrokerFailed(f"The Tidewire broker ended by itself with status {status}:\n{self.log_tail()}")
        return self._process
