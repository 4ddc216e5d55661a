"""Errors of Spark's Python processes, as these processes send them to the JVM."""

import inspect
import io
import struct

import pytest
from pyspark.serializers import SpecialLengths
from pyspark.util import handle_worker_exception

from tidewire.spark.errors import DataLost
from tidewire.spark.limited_streaming import TidewireStreamReader
from tidewire.spark.one_sentence import one_sentence


class Called:
    """Something that Spark calls."""

    @one_sentence()
    def act(self, error: Exception) -> str:
        """Raise the error."""
        raise error


def sent(error: Exception) -> str:
    """Return what a process of Spark sends when this error leaves a method."""
    sink = io.BytesIO()
    try:
        Called().act(error)
    except Exception as raised:
        handle_worker_exception(raised, sink)
    kind, size = struct.unpack_from(">ii", sink.getvalue())
    text = sink.getvalue()[8:].decode()
    assert (kind, size) == (SpecialLengths.PYTHON_EXCEPTION_THROWN, len(text))
    return text


def test_an_error_of_tidewire_is_sent_as_its_sentence() -> None:
    lost = DataLost("the topic is gone")
    lost.__cause__ = OSError("a reason")
    assert sent(lost) == "tidewire.spark.errors.DataLost: the topic is gone\n"


@pytest.mark.parametrize("error", [ValueError("a mistake"), AssertionError("never"), ConnectionResetError("peer")])
def test_any_other_error_keeps_its_calls(error: Exception) -> None:
    text = sent(error)
    assert text.startswith("Traceback")
    assert "in act" in text


def test_a_signature_stays() -> None:
    """By it, Spark sees that a stream takes limits."""
    assert list(inspect.signature(TidewireStreamReader.latestOffset).parameters) == ["self", "start", "limit"]
