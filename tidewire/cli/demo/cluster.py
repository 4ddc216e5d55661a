"""A cluster for the demo, run by the commands that a user would type. Each command is shown with its output.

A broker that owns segments is killed in the middle of the load. On the embedded metadata store it is also the metadata
controller. The others take over by themselves. Then `tidewire cluster start` starts the killed one again.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tidewire.cli.administration import Administration
from tidewire.cli.endings import CommandFailed

COMMAND: Final = (sys.executable, "-m", "tidewire.cli", "cluster")
COMMAND_SECONDS_MAX: Final = 300.0
"""How long one command may take. Each has a shorter bound of its own, and says so."""

_ANY_PORT: Final = "127.0.0.1:0"
_READY: Final = re.compile(r"ready service-url=(\S+) http=\S+ (?:kafka=\S+ )?data=.+")
_BROKER: Final = re.compile(r"\S+ pulsar=\S+ http=(\S+) (?:kafka=\S+ )?pid=\d+")


class Cluster:
    """Brokers on `data_dir` that run for the length of a `with` block. It is what `load.Serving` describes."""

    survives: Final = True

    def __init__(self, data_dir: Path, topic: str, brokers: int, metadata: str, *, say: Callable[[str], None]) -> None:
        """Set up.

        Args:
            data_dir: the folder that the brokers share.
            topic: the topic of the load, whose segments have owners.
            brokers: how many brokers run.
            metadata: see `tidewire cluster start`.
            say: prints a line.
        """
        self.data_dir = data_dir
        self._topic = topic
        self._metadata = metadata
        self._brokers = brokers
        self._say = say
        self._service_url = ""
        self._http: list[str] = []
        self._controller: str | None = None
        """The metadata controller; None on etcd."""
        self._killed = ""

    @property
    def service_url(self) -> str:
        """The URL for clients, with all brokers."""
        return self._service_url

    @property
    def http_addresses(self) -> Sequence[str]:
        """The addresses for administration, of all brokers."""
        return tuple(self._http)

    def crash(self) -> str:
        """Kill the metadata controller, or on etcd the owner of most segments. Return what was killed."""
        shown = json.loads(self._ask("status", "--json"))["brokers"]
        owned = {broker["broker"]: broker["claims"]["segments"] for broker in shown}
        victim = self._controller or max(owned, key=owned.__getitem__)
        if not owned[victim]:
            self._run("move", self._a_segment(), victim)
            owned = {**owned, victim: 1}
        self._run("kill", victim)
        self._killed = victim
        role = "the metadata controller, and " if self._controller else ""
        return f"{victim} was {role}the owner of {owned[victim]} of {sum(owned.values())} segments. It died"

    def _a_segment(self) -> str:
        """Return the name of a segment that takes messages."""
        segments = Administration(*self._http).statistics(self._topic)["segments"].values()
        return next(str(segment["name"]) for segment in segments if segment["state"] == "ACTIVE")

    def wait_given_up(self) -> None:
        """Watch the cluster until the killed broker owns nothing.

        Raises:
            CommandFailed: nobody shows the cluster any more.
        """
        called = [*COMMAND, "status", "--watch", "--json", "--data-dir", str(self.data_dir)]
        with subprocess.Popen(called, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as watching:  # noqa: S603 - ours
            try:
                assert watching.stdout is not None
                for line in watching.stdout:
                    brokers = json.loads(line)["brokers"]
                    if not any(any(one["claims"].values()) for one in brokers if one["broker"] == self._killed):
                        return
            finally:
                watching.terminate()
        raise CommandFailed("The cluster cannot be watched any more. See the brokers' logs.")

    def restart(self) -> None:
        """Start the killed broker again. It is ready on return."""
        self._run("start")

    def check_running(self) -> None:
        """Do nothing: if a broker ended by itself, the others go on."""

    def __enter__(self) -> Self:
        wanted = ("--brokers", str(self._brokers), "--metadata", self._metadata)
        said = self._run("start", *wanted, "--pulsar", _ANY_PORT, "--http", _ANY_PORT, "--kafka", _ANY_PORT)
        for line in said:
            if ready := _READY.fullmatch(line):
                self._service_url = ready[1]
            elif broker := _BROKER.fullmatch(line):
                self._http.append(broker[1])
        self._controller = json.loads(self._ask("status", "--json"))["metadataController"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run("stop")

    def _run(self, command: str, *arguments: str) -> list[str]:
        """Run a command and show it. Return the lines of its output."""
        shown = [command, *arguments, "--data-dir", str(self.data_dir)]
        self._say(f"$ tidewire cluster {' '.join(shown)}")
        lines = self._ask(command, *arguments).splitlines()
        for line in lines:
            self._say(f"  {line}")
        return lines

    def _ask(self, command: str, *arguments: str) -> str:
        """Run a command. Return its output.

        Raises:
            CommandFailed: the text is what it said.
        """
        ended = subprocess.run(  # noqa: S603 - our own command
            [*COMMAND, command, *arguments, "--data-dir", str(self.data_dir)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        if ended.returncode != 0:
            raise CommandFailed(ended.stderr.strip() or f"`tidewire cluster {command}` failed and said nothing.")
        return ended.stdout
