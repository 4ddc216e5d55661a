"""Errors as users read them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker import errors
from broker.errors import BrokerError, sentences

ROOM = Path(errors.__file__).parent
REFUSALS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, BrokerError)}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("the disk is full", "The disk is full."),
        ("the disk is full. Free space.", "The disk is full. Free space."),
        ("Batch 7 is written. Continue with batch 8", "Batch 7 is written. Continue with batch 8."),
        # A name stays as it is.
        ("topic://public/default/x is closed", "topic://public/default/x is closed."),
        ("'x' is not a valid name: it is too long", "'x' is not a valid name: it is too long."),
        ("5:3 was not sent yet", "5:3 was not sent yet."),
    ],
)
def test_an_error_is_shown_as_whole_sentences(message: str, shown: str) -> None:
    assert sentences(BrokerError(message)) == shown


def _refusals() -> Iterator[tuple[str, list[ast.expr]]]:
    """Yield where the broker raises a refusal, and the parts of its message."""
    for path in ROOM.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                message = node.exc.args[-1]
                if ast.unparse(node.exc.func) in REFUSALS | {"HTTPException"}:
                    parts = message.values if isinstance(message, ast.JoinedStr) else [message]
                    yield f"{path.relative_to(ROOM)}:{node.lineno}", parts


def test_every_refusal_is_written_in_sentences() -> None:
    """E20: what happened, to what, and what to do. A message may begin with a name, and end with another reason."""
    fragments = []
    for where, parts in _refusals():
        first, last = parts[0], parts[-1]
        begins = first.value[0].islower() if isinstance(first, ast.Constant) and isinstance(first.value, str) else False
        ends = not last.value.endswith(".") if isinstance(last, ast.Constant) and isinstance(last.value, str) else False
        if begins or ends:
            fragments.append(where)
    assert fragments == []
    assert len(list(_refusals())) > 100, "the search has lost its way"
