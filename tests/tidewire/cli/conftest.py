"""A broker for all tests of commands, and the command line as users type it."""

import uuid
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from tests.support.processes import RunningBroker, running_broker
from tidewire.cli.app import app


class CommandLine:
    """`tidewire ...` against one broker, in this process."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self._environment = {"TIDEWIRE_SERVICE_URL": broker.service_url, "TIDEWIRE_HTTP_URL": broker.http_url}

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Result:
        """Run the command. Return its output and its exit status."""
        return CliRunner().invoke(app, arguments, input=stdin, env=self._environment)

    def well(self, *arguments: str, stdin: bytes = b"") -> str:
        """Return the command's output. It must succeed, with nothing on standard error."""
        result = self(*arguments, stdin=stdin)
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return result.stdout

    def complaint(self, *arguments: str, status: int = 1) -> str:
        """Return the command's complaint. It must end with `status` and print nothing else."""
        result = self(*arguments)
        assert (result.exit_code, result.stdout) == (status, ""), result.output
        return result.stderr


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture
def tidewire(broker: RunningBroker) -> CommandLine:
    return CommandLine(broker)


@pytest.fixture
def topic(tidewire: CommandLine) -> str:
    """A scalable topic of two segments that no other test uses."""
    name = f"topic://public/default/{uuid.uuid4().hex}"
    tidewire.well("topics", "create", name, "--segments", "2")
    return name
