"""Pages tell people what to type. So the commands, their options and the HTTP calls that pages name must exist."""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pytest
import typer
from starlette.routing import Match, Route
from typer.core import TyperGroup

from broker.http.resources import Resource
from tests.broker.http.test_description import application
from tests.scripts.test_pages import ROOT, pages
from tidewire.cli.app import app

INLINE: Final = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
BLOCK: Final = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
CONTINUED: Final = re.compile(r"\\\n\s*")
CALL: Final = re.compile(r"`(GET|PUT|POST|DELETE) (/[^`\s?]*)")
CURL: Final = re.compile(r"\bcurl\b[^`\n]*?http://[^/\s`']+(/[^`\s?'\"]*)")
METHOD: Final = re.compile(r"-X\s*([A-Z]+)")
"""As curl takes it."""


class Named(NamedTuple):
    """Something that a page names."""

    page: str
    text: str


class Call(NamedTuple):
    """A call over HTTP that a page names."""

    page: str
    method: str
    path: str


def named() -> Iterator[Named]:
    """Everything in a code's type, inline or as one line of a block."""
    for page in pages():
        text, name = page.read_text("utf-8"), str(page.relative_to(ROOT))
        for block in BLOCK.findall(text):
            for line in CONTINUED.sub(" ", block).splitlines():
                yield Named(name, line.strip())
        for code in INLINE.findall(BLOCK.sub("", text)):
            yield Named(name, " ".join(code.split()))


def commands() -> list[Named]:
    """The command lines that begin with `tidewire`. What a command prints begins with its name and a colon."""
    return [one for one in named() if re.match(r"tidewire [a-z]+(?!\S*:( |$))", one.text)]


def problem_of(words: Sequence[str]) -> str | None:
    """What is wrong with a command line; None if its commands and options exist."""
    command = typer.main.get_command(app)
    for number, word in enumerate(words):
        if isinstance(command, TyperGroup):
            if word in command.commands:
                command = command.commands[word]
                continue
            if not word.startswith("-"):
                return f"there is no command {' '.join(words[: number + 1])}"
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
        if word.startswith("--") and word.split("=")[0] not in known:
            return f"{command.name} has no option {word}"
    return None


def test_commands_and_their_options_are_there() -> None:
    found = commands()
    assert len(found) > 100
    problems = []
    for one in found:
        problem = problem_of(shlex.split(one.text, comments=True)[1:])
        if problem is not None:
            problems.append((*one, problem))
    assert problems == []


@pytest.mark.parametrize("wrong", ["tidewire topic list", "tidewire topics lists", "tidewire broker --data-folder x"])
def test_a_mistake_is_found(wrong: str) -> None:
    assert problem_of(wrong.split()[1:]) is not None


def test_calls_are_served() -> None:
    routes = [route for route in application().routes if isinstance(route, Route)]
    calls = set()
    for one in named():
        calls |= {Call(one.page, method, path) for method, path in CALL.findall(f"`{one.text}")}
        for path in CURL.findall(one.text):
            method = METHOD.search(one.text)
            calls.add(Call(one.page, "GET" if method is None else method[1], path))
    assert len(calls) >= 5
    assert sorted(call for call in calls if not is_served(call, routes)) == []


def is_served(call: Call, routes: Sequence[Route]) -> bool:
    for route in routes:
        match, _ = route.matches({"type": "http", "method": call.method, "path": call.path, "root_path": ""})
        if match is Match.FULL:
            return not isinstance(route.endpoint, Resource) or route.endpoint.calls[call.method].is_served
    return False
