"""Runs the examples of docs/how-to/use-kafka-clients.md, top to bottom, against a new broker."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from scripts.need import place
from tests.interop.test_pages import Block, blocks
from tests.scenarios.client.test_readme import CHECKOUT
from tests.support.java import QUICK_JAVA
from tests.support.processes import RunningBroker, running_broker

pytestmark = pytest.mark.interop

ADDRESS: Final = "127.0.0.1:9092"
"""The broker's address in the text."""
RUN_SECONDS_MAX: Final = 180.0


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[RunningBroker]:
    """Run a broker that has no topics."""
    with running_broker(tmp_path / "data") as broker:
        yield broker


def test_the_examples_of_the_page_print_what_it_says(fresh: RunningBroker, tmp_path: Path) -> None:
    text = (CHECKOUT / "docs/how-to/use-kafka-clients.md").read_text(encoding="utf-8")
    found = blocks(text)
    assert [block.kind for block in found] == ["python", "python", "java", "python", "shell"]
    for block in found:
        assert ADDRESS in block.code
        ended = subprocess.run(
            command(block, block.code.replace(ADDRESS, str(fresh.kafka)), tmp_path),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
        assert (ended.returncode, ended.stdout) == (0, block.printed), ended.stderr


def command(block: Block, code: str, folder: Path) -> list[str]:
    """Return the command that runs an example."""
    if block.kind == "python":
        return [sys.executable, "-c", code]
    if block.kind == "shell":
        place("debian:kcat")
        return ["bash", "-euc", code]
    program = folder / "Example.java"
    program.write_text(code, encoding="utf-8")
    return ["java", *QUICK_JAVA, "-cp", f"{place('kafka-java-4.3')}/lib/*", str(program)]
