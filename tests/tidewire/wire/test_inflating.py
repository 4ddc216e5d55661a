"""ZLIB and GZIP in slices."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.wire.inflating import SLICE_BYTES, Format, InflateError, inflate
from tidewire.wire.steps import finished

COMPRESS: dict[Format, Callable[[bytes], bytes]] = {Format.ZLIB: zlib.compress, Format.GZIP: gzip.compress}
containers = pytest.mark.parametrize("container", list(Format))


@containers
@given(st.binary(max_size=300))
def test_what_was_compressed_comes_back(container: Format, data: bytes) -> None:
    assert finished(inflate(COMPRESS[container](data), container, len(data))) == data


@containers
def test_a_step_inflates_one_slice(container: Format) -> None:
    """E7: even if all of the input is consumed by the first one."""
    packed = COMPRESS[container](bytes(5 * SLICE_BYTES))
    assert len(list(inflate(packed, container, 5 * SLICE_BYTES))) == 5


@containers
def test_a_bomb_takes_no_more_memory_than_its_bound(container: Format) -> None:
    """E8: it is refused as soon as the bound is passed."""
    bomb = COMPRESS[container](bytes(64 * SLICE_BYTES))
    tracemalloc.start()
    with pytest.raises(InflateError, match="more than 1000 bytes"):
        finished(inflate(bomb, container, 1_000))
    with pytest.raises(InflateError, match="more than"):
        finished(inflate(bomb, container, 2 * SLICE_BYTES))
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * SLICE_BYTES


@containers
@pytest.mark.parametrize("size_max", [0, 99, 100])
def test_the_bound_is_exact(container: Format, size_max: int) -> None:
    """E8: also a bound of nothing."""
    assert finished(inflate(COMPRESS[container](bytes(size_max)), container, size_max)) == bytes(size_max)
    with pytest.raises(InflateError):
        finished(inflate(COMPRESS[container](bytes(size_max + 1)), container, size_max))


@containers
def test_damage_is_refused(container: Format) -> None:
    """E8: data cut short at any byte, other bytes behind them, another checksum, nothing at all."""
    whole = COMPRESS[container](b"some data " * 9)
    flipped = whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:]
    for damaged in (*(whole[:end] for end in range(len(whole))), whole + b"x", whole + whole, flipped, b"\0" * 30):
        with pytest.raises(InflateError):
            finished(inflate(damaged, container, 1_000))
