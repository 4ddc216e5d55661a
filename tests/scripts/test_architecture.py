"""ARCHITECTURE.md leads a newcomer through the code, so all files and names in it must exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")

MENTION: Final = re.compile(r"`((?:[\w-]+/)*[\w-]+\.(?:py|proto|sh))(?::([\w.]+))?`")
"""`storage/watermark.py`, or with what is in it: `txn/buffer.py:TransactionBuffer.publish`."""

ROOMS: Final = ("storage", "txn", "dispatch", "broker", "tidewire", "tests", "scripts")


def mentions() -> list[tuple[str, str]]:
    return sorted(set(MENTION.findall(TEXT)))


def places(name: str) -> Iterator[Path]:
    """Return the files that the text can mean. Within a room's paragraph it has only the end of a path."""
    for room in ROOMS:
        for path in (ROOT / room).rglob(Path(name).name):
            if f"/{path.relative_to(ROOT)}".endswith(f"/{name}"):
                yield path


def has(path: Path, qualified: str) -> bool:
    """Return whether the module defines the name."""
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for part in qualified.split("."):
        for node in body:
            if part in names_of(node):
                body = node.body if isinstance(node, ast.ClassDef) else []
                break
        else:
            return False
    return True


def names_of(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module or class defines."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case _:
            return []


def test_the_text_gives_enough_to_follow() -> None:
    assert len(mentions()) > 50


@pytest.mark.parametrize(("file", "name"), mentions())
def test_what_the_text_names_is_there(file: str, name: str) -> None:
    found = list(places(file))
    assert found, f"ARCHITECTURE.md names {file}"
    if name:
        assert any(has(path, name) for path in found), f"ARCHITECTURE.md names {name} in {file}"


def test_a_name_that_is_not_there_is_noticed() -> None:
    assert not has(ROOT / "txn" / "buffer.py", "TransactionBuffer.no_such")
    assert not list(places("no_such.py"))
