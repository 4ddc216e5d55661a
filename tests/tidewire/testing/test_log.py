"""The end of a broker's log."""

from pathlib import Path

from tidewire.testing.log import tail


def test_the_end_of_a_log_is_whole_lines_of_any_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_bytes(b"\xff first\n" + b"".join(b"%05d %s\n" % (number, b"x" * 90) for number in range(2_000)))
    assert tail(log, 2).split("\n") == [f"{number:05} " + "x" * 90 for number in (1_998, 1_999)]
    assert len(tail(log, 10_000)) < 64 * 1024
