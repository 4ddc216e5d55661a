"""Runs pages with examples, top to bottom, each against a new broker.

A block is run if an HTML comment stands right before it: `<!-- test: shell -->`, or `python` or `java`. If a `text`
block follows it before the next heading, it is the expected output, except for transaction ids.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.scenarios.client.test_readme import CHECKOUT, Piece, run
from tests.support.ports import ports_in_a_row
from tests.support.subjects import Subject, running_subject

PAGES: Final = (
    "docs/tutorial/first-steps.md",
    "docs/how-to/administer-topics.md",
    "docs/how-to/look-at-messages.md",
    "docs/how-to/share-work.md",
    "docs/how-to/send-and-read.md",
)
RUN_SECONDS_MAX: Final = 200.0

_BLOCK: Final = re.compile(
    r"<!-- test: (?P<kind>shell|python|java) -->\n+```(?:python|java)?\n(?P<code>.*?)^```$"
    r"(?:\n(?:(?!#|```)[^\n]*\n)*```text\n(?P<printed>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
_TRANSACTION: Final = re.compile(r"\b\d+:\d{10,}\b")


class Block(NamedTuple):
    """One part to run."""

    kind: str
    code: str
    printed: str | None


def blocks(text: str) -> list[Block]:
    return [Block(match["kind"], match["code"], match["printed"]) for match in _BLOCK.finditer(text)]


def shell(code: str, broker: Subject, folder: Path) -> str:
    """Run the commands, which must succeed, and return their output."""
    urls = {"TIDEWIRE_HTTP_URL": broker.http_url, "TIDEWIRE_SERVICE_URL": broker.service_url}
    return commands(code, folder, urls, RUN_SECONDS_MAX)


def commands(code: str, folder: Path, settings: Mapping[str, str], seconds_max: float) -> str:
    """As `shell`, with these environment variables."""
    ended = subprocess.run(
        ["bash", "-euc", code],
        cwd=folder,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **settings},
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
    )
    assert ended.returncode == 0, f"{code}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def run_page(text: str, broker: Subject, folder: Path) -> None:
    found = blocks(text)
    assert found
    for block in found:
        printed = (
            shell(block.code, broker, folder)
            if block.kind == "shell"
            else run(Piece(block.kind, block.code), broker, folder)
        )
        assert printed.strip(), f"it printed nothing:\n{block.code}"
        if block.printed is not None:
            assert _TRANSACTION.sub("ID", printed) == _TRANSACTION.sub("ID", block.printed)


@pytest.mark.interop
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    with running_subject("tidewire", tmp_path / "data") as broker:
        run_page((CHECKOUT / page).read_text(encoding="utf-8"), broker, tmp_path)


@pytest.mark.interop
@pytest.mark.timeout(600)
def test_the_readmes_first_example_prints_what_it_says(tmp_path: Path) -> None:
    """T20: a transaction through a split is hidden until its commit, and then completely visible."""
    with running_subject("tidewire", tmp_path / "data") as broker:
        text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
        first = blocks(text)[0]
        assert first.kind == "shell"
        assert first.printed is not None
        run_page(text.partition("### From Python")[0], broker, tmp_path)


@pytest.mark.interop
@pytest.mark.timeout(600)
def test_the_readmes_cluster_loses_a_broker_and_goes_on(tmp_path: Path) -> None:
    """C21: the readme's commands on three free ports. They print what it says."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8").partition("### Three brokers")[2]
    block = blocks(text)[0]
    assert block.printed is not None
    pulsar = ports_in_a_row(3)
    addresses = f"--pulsar 127.0.0.1:{pulsar} --http 127.0.0.1:0 --kafka 127.0.0.1:0"
    code = block.code.replace("cluster start", f"cluster start {addresses}")
    for number in range(3):
        code = code.replace(str(6650 + number), str(pulsar + number))
    try:
        printed = commands(code, tmp_path, {}, 2 * RUN_SECONDS_MAX)
    finally:
        commands("tidewire cluster stop || true", tmp_path, {}, RUN_SECONDS_MAX)
    said = re.sub(r"the pid \d+", "the pid N", printed)
    assert said.endswith(re.sub(r"the pid \d+", "the pid N", block.printed))


def test_blocks_are_found_with_what_they_print() -> None:
    text = (
        "```\nnot this\n```\n<!-- test: shell -->\n```\none\n```\n\nIt prints:\n\n```text\n1\n```\n"
        "<!-- test: shell -->\n```\ntwo\n```\n\n## Next\n\n```text\nnot this\n```\n"
        "<!-- test: python -->\n```python\nthree\n```\n"
    )
    assert blocks(text) == [
        Block("shell", "one\n", "1\n"),
        Block("shell", "two\n", None),
        Block("python", "three\n", None),
    ]
