import io
from errno import ENOSPC

from tidewire.cli.log_stream import LogStream


class Full(io.StringIO):
    """A stream that refuses while `is_full`."""

    is_full = False

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError(ENOSPC, "no space")
        return super().write(text)

    def flush(self) -> None:
        if self.is_full:
            raise OSError(ENOSPC, "no space")


def test_a_log_that_cannot_be_written_ends_nothing_and_is_missed() -> None:
    """E13: standard error is often a file on the disk that is full."""
    stream = Full()
    log = LogStream(stream)
    log.write("first\n")
    stream.is_full = True
    for _ in range(3):
        log.write("lost\n")
    stream.is_full = False
    log.write("last\n")
    log.flush()
    assert stream.getvalue() == "first\n3 earlier lines of this log could not be written and are lost\nlast\n"


def test_a_failing_flush_ends_nothing() -> None:
    stream = Full()
    log = LogStream(stream)
    stream.is_full = True
    log.flush()
    stream.is_full = False
    log.write("next\n")
    assert stream.getvalue().endswith("next\n")
