"""The collector is paused only as long as requested."""

import gc

import pytest

from storage.metadata.collector import collector_paused


@pytest.fixture(autouse=True)
def _as_it_was() -> None:
    assert gc.isenabled(), "the tests run with the collector at work"


def test_it_is_paused_and_goes_on() -> None:
    """This holds if the paused work fails, and if two pauses overlap."""
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), collector_paused():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_who_had_it_off_keeps_it_off() -> None:
    """The pause restores the earlier setting."""
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_came_meanwhile_is_let_go_of() -> None:
    """Plain tuples cost later collections nothing."""
    with collector_paused():
        tuples = [(str(number), number) for number in range(100)]
    assert not any(map(gc.is_tracked, tuples))
