"""Runs the examples of README.md unchanged, top to bottom, against a new broker.

A Python block is run if an HTML comment stands right before it: `<!-- test: python -->`, or `<!-- test: spark -->` if
it needs Java, too. Other tests run `<!-- test: pytest -->` and `<!-- test: shell -->`. Of shell blocks, lines that
begin with `tidewire topics` are run. Only the broker's addresses are changed. The environment is activated, which the
README must say first.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.java import QUICK_ENVIRONMENT
from tests.support.subjects import Subject

CHECKOUT: Final = Path(__file__).parents[3]
SERVICE_URL: Final = "pulsar://127.0.0.1:6650"
"""The broker's address in the text."""
ACTIVATION: Final = "\n. .venv/bin/activate "
"""Without it Spark starts whatever `python3` it finds, which has no tidewire: DATA_SOURCE_NOT_FOUND."""
RUN_SECONDS_MAX: Final = 200.0

_PIECE: Final = re.compile(
    r"<!-- test: (?P<kind>python|spark) -->\n+```python\n(?P<code>.*?)^```|^tidewire (?P<command>topics [^\n]*)$",
    re.DOTALL | re.MULTILINE,
)


class Piece(NamedTuple):
    """One part to run."""

    kind: str
    """python, spark, or command."""
    text: str


def pieces(text: str) -> list[Piece]:
    """Return the parts to run, in order."""
    return [
        Piece(match["kind"], match["code"]) if match["kind"] else Piece("command", match["command"])
        for match in _PIECE.finditer(text)
    ]


def run(piece: Piece, broker: Subject, folder: Path) -> str:
    """Run a part, which must succeed, and return its output."""
    environment = {
        **os.environ,
        **QUICK_ENVIRONMENT,
        # As in an activated environment: Spark starts its workers by the name of `python3`.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(CHECKOUT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TIDEWIRE_HTTP_URL": broker.http_url,
    }
    if piece.kind == "command":
        arguments = [sys.executable, "-m", "tidewire.cli", *piece.text.split()]
    else:
        assert SERVICE_URL in piece.text, f"it should connect to {SERVICE_URL}:\n{piece.text}"
        arguments = [sys.executable, "-c", piece.text.replace(SERVICE_URL, broker.service_url)]
    ended = subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )
    assert ended.returncode == 0, f"{piece.text}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.mark.interop
@pytest.mark.timeout(600)
def test_the_readmes_examples_run_in_order(broker: Subject, tmp_path: Path) -> None:
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    found = pieces(text)
    assert 0 <= text.find(ACTIVATION) < text.find("<!-- test:"), "the README does not say how to get there"
    assert {piece.kind for piece in found} >= {"command", "python", "spark"}, "the README has lost an example"
    folder = tmp_path / "work"
    folder.mkdir()
    for piece in found:
        printed = run(piece, broker, folder)
        assert printed.strip(), f"it printed nothing:\n{piece.text}"
        rows = [line for line in printed.splitlines() if line.startswith("|")]
        assert len(rows) == len(set(rows)), f"who sees a row twice here will not believe in exactly once:\n{printed}"


def test_pieces_are_found_in_order_and_only_if_marked() -> None:
    text = """
```
tidewire topics create topic://a/b/c
tidewire broker
```
<!-- test: python -->
```python
first()
```
```python
not_this()
```
<!-- test: pytest -->
```python
def test_not_this(): ...
```
<!-- test: spark -->

```python
second()

third()
```
"""
    assert pieces(text) == [
        Piece("command", "topics create topic://a/b/c"),
        Piece("python", "first()\n"),
        Piece("spark", "second()\n\nthird()\n"),
    ]


def test_a_piece_that_fails_fails_the_test(broker: Subject, tmp_path: Path) -> None:
    for text in (f"raise SystemExit('{SERVICE_URL}')", "print('no address')"):
        with pytest.raises(AssertionError):
            run(Piece("python", text), broker, tmp_path)
