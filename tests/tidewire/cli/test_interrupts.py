"""Ctrl-C during commands that run until they are ended, in processes of their own."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.processes import END_SECONDS_MAX
from tests.tidewire.cli.conftest import CommandLine


@contextmanager
def running(tidewire: CommandLine, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    line = [sys.executable, "-m", "tidewire.cli", *arguments, "--service-url", tidewire.broker.service_url]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def test_producing_tells_what_is_stored(tidewire: CommandLine, topic: str) -> None:
    with (
        running(tidewire, "produce", topic, "--key", "k") as produce,
        running(tidewire, "consume", topic, "--follow") as consume,
    ):
        assert produce.stdin is not None
        assert consume.stdout is not None
        produce.stdin.write(b"a\nb\nhalf a line")
        produce.stdin.flush()
        assert [consume.stdout.readline() for _ in range(2)] == [b"a\n", b"b\n"]
        produce.send_signal(signal.SIGINT)
        # Its input stays open, as a terminal's does.
        assert produce.wait(END_SECONDS_MAX) == 130
        assert produce.stderr is not None
        told = produce.stderr.read().decode()
        stored = re.fullmatch(r"tidewire produce: interrupted after (\d) messages?\.(?: (\d) more may .*)?\n", told)
        # A consumer may have a message before its producer has the receipt.
        assert stored is not None, told
        assert int(stored[1]) + int(stored[2] or 0) == 2
        consume.send_signal(signal.SIGINT)
        rest, summary = consume.communicate(timeout=END_SECONDS_MAX)
        assert (consume.returncode, rest) == (130, b"")
        assert re.fullmatch(rb"tidewire consume: interrupted after 2 messages in .* s \(.*\)\.\n", summary), summary
