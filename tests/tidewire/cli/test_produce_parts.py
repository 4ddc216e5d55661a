"""What `tidewire produce` is made of: lines, a steady pace, and the line that shows the rate."""

import io
import os
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.scripted_broker import scripted_broker
from tidewire.cli import lines, receipts
from tidewire.cli.endings import CommandFailed, UsageError
from tidewire.cli.live import LiveLine, Rate
from tidewire.cli.pacing import CATCH_UP_SECONDS_MAX, Pace


async def lines_in(content: bytes, block: int | None = None) -> list[bytes]:
    class Blocks(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return super().read1(block or size)

    return [line async for line in lines.lines_of(Blocks(content), "x")]


@pytest.mark.parametrize("block", [1, 2, 3, None])
async def test_lines_are_whole_wherever_the_blocks_end(block: int | None) -> None:
    assert await lines_in(b"a\r\n\n\xff\r\r\nlast", block) == [b"a", b"", b"\xff\r", b"last"]
    assert await lines_in(b"a\n", block) == [b"a"]
    assert await lines_in(b"", block) == []


async def test_a_pipe_that_answers_at_once_is_waited_for() -> None:
    """A program that shares a pipe or terminal may have set it so. A read then returns None while nothing is there."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    found: list[bytes] = []

    async def read() -> None:
        with os.fdopen(reading, "rb", buffering=0) as source:
            found.extend([line async for line in lines.lines_of(source, "-")])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked(0.05)
        os.write(writing, b"a\nb")
        os.close(writing)
    assert found == [b"a", b"b"]


def test_a_closed_standard_input_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="Standard input is closed"), lines.opened("-"):
        pass


async def test_a_file_without_line_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 100)
    assert await lines_in(b"x" * 100 + b"\n", 10) == [b"x" * 100]
    with pytest.raises(CommandFailed, match="one message a line"):
        await lines_in(b"x" * 101 + b"\n", 10)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UsageError, match=str(path)), lines.opened(str(path)):
            pass


async def test_steps_are_evenly_spaced_and_exact_over_time(autojump_clock: MockClock) -> None:
    pace, begun = Pace(3), trio.current_time()
    for number in range(10_000):
        await pace.step()
        assert trio.current_time() == pytest.approx(begun + number / 3)


async def test_short_delays_are_caught_up_and_long_ones_are_not(autojump_clock: MockClock) -> None:
    pace, begun = Pace(10), trio.current_time()
    await pace.step()
    await trio.sleep(CATCH_UP_SECONDS_MAX - 0.01)
    for _ in range(1, 30):
        await pace.step()
    assert trio.current_time() == pytest.approx(begun + 2.9)
    await trio.sleep(60)
    moments = [pace.take() for _ in range(10)]
    assert moments == pytest.approx([begun + 62.9 + number / 10 for number in range(10)])


async def test_without_a_rate_nothing_waits(autojump_clock: MockClock) -> None:
    pace, begun = Pace(None), trio.current_time()
    for _ in range(1000):
        await pace.step()
    assert trio.current_time() == begun


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_a_terminal_shows_the_rate_and_what_is_said_has_its_own_line(autojump_clock: MockClock) -> None:
    stream = Terminal()
    line, rate = LiveLine(stream), Rate()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.keep, rate.now)
        await trio.sleep(0.5)
        for _ in range(30):
            rate.count(100_000)
        await trio.sleep(1)
        line.say("tidewire: waiting")
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    erase = "\r\x1b[K"
    assert stream.getvalue() == (
        f"{erase}30 messages, 30/s, 3.00 MB/s{erase}tidewire: waiting\n{erase}30 messages, 0/s, 0.00 MB/s{erase}"
    )
    assert rate.whole() == "30 messages in 2.5 s (12/s, 1.20 MB/s)"


async def test_elsewhere_there_are_lines_only(autojump_clock: MockClock) -> None:
    stream = io.StringIO()
    line = LiveLine(stream)
    await line.keep(Rate().now)
    line.say("tidewire: waiting")
    assert stream.getvalue() == "tidewire: waiting\n"


async def test_receipts_are_bounded_by_number_and_by_bytes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "MESSAGES_MAX", 3)
    monkeypatch.setattr(receipts, "BYTES_MAX", 100)
    async with scripted_broker() as broker:
        topic = broker.add_topic("topic://public/default/x", 1)
        topic.segments[0].held = []
        async with broker.client() as client, client.producer("topic://public/default/x") as producer:
            for sizes, accepted in (([1] * 5, 3), ([60] * 5, 1)):
                durable = Rate()
                waiting, added = receipts.Receipts(durable), 0
                async with trio.open_nursery() as nursery:

                    async def send_all(sizes: list[int] = sizes, waiting: receipts.Receipts = waiting) -> None:
                        nonlocal added
                        for size in sizes:
                            await waiting.add(await producer.enqueue(bytes(size)), size)
                            added += 1

                    nursery.start_soon(send_all)
                    await wait_all_tasks_blocked()
                    assert (added, durable.messages) == (accepted, 0)
                    broker.answer_held(topic.segments[0])
                    await wait_all_tasks_blocked()
                    broker.answer_held(topic.segments[0])
                await waiting.all_durable()
                assert (durable.messages, durable.bytes) == (5, sum(sizes))
                assert waiting.give_up() == 0
                topic.segments[0].held = []
