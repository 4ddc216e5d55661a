"""A folder with the tests of a user of `tidewire.testing`, and a stand-in for the broker's process."""

import sys

import pytest

from tests.tidewire.testing.sessions import environment
from tidewire.testing import process

STAND_IN = """
import signal, sys
mood = sys.argv[-1]
print("this is", mood, file=sys.stderr, flush=True)
if mood == "unable":
    sys.exit(3)
if mood == "silent":
    signal.pause()
if mood == "odd":
    print("hello", flush=True)
    signal.pause()
print("ready pulsar=127.0.0.1:1 http=127.0.0.1:2 data=d", flush=True)
if mood == "talkative":
    print("more than a pipe holds " * 10_000, flush=True)
    sys.exit(0)
while True:
    signal.pause()
"""


@pytest.fixture
def users(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The folder. Its sessions have this checkout's plugin, and no other installed one."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    return pytester


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `process.start` run the stand-in. Its last argument says what it does."""
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", STAND_IN))
