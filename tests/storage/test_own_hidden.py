"""What an owner knows of the hidden entries of its own ledgers."""

from storage.hidden_entries import NOTHING_HIDDEN, Hidden
from storage.own_hidden import OwnHidden
from storage.position import Position


def test_only_ledgers_of_its_own_time_are_known() -> None:
    """K35: of an earlier owner's ledger, "nothing was added" does not mean that nothing is hidden."""
    own = OwnHidden(above=4)
    own.add(Position(4, 0), 1)
    assert own.of(4) is None
    untouched = own.of(5)
    assert untouched is not None
    assert untouched.total == NOTHING_HIDDEN
    own.add(Position(6, 2), 3)
    known = own.of(6)
    assert known is not None
    assert (known.total, own.entries_in(6), own.entries_in(5)) == (Hidden(1, 3), 1, 0)


def test_what_is_on_disk_or_trimmed_is_forgotten() -> None:
    own = OwnHidden(above=-1)
    for ledger in range(3):
        own.add(Position(ledger, 0), 1)
    own.release(0)
    assert own.of(0) is None
    own.keep({0, 2})
    assert own.of(0) is None
    assert [own.entries_in(ledger) for ledger in range(3)] == [0, 0, 1]
    own.keep({2})
    assert own.of(2) is not None
