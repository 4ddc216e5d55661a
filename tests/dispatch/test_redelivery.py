"""Who holds which entry: a table of cases, and a comparison with a naive model."""

from hypothesis import given
from hypothesis import strategies as st

from dispatch.redelivery import RUN_GAP_MAX, Redelivery
from storage.position import Position


def at(entry: int, ledger: int = 7) -> Position:
    return Position(ledger, entry)


def test_what_a_leaver_held_comes_back_uncounted() -> None:
    """The redelivery count counts requests, not lost connections."""
    redelivery: Redelivery[str] = Redelivery()
    redelivery.sent("a", at(1), 3)
    redelivery.sent("a", at(0), 1)
    redelivery.sent("b", at(2), 1)
    assert redelivery.unacked("a") == 4
    assert redelivery.left("a") == 2
    assert redelivery.run(10) == [at(0), at(1)]
    assert redelivery.unacked("a") == 0
    assert redelivery.unacked_total == 1
    assert redelivery.count(at(0)) == 0
    assert redelivery.left("a") == 0


def test_asking_again_counts_and_only_for_what_one_holds() -> None:
    redelivery: Redelivery[str] = Redelivery()
    redelivery.sent("a", at(0), 1)
    redelivery.sent("b", at(1), 1)
    assert redelivery.send_again("a", [at(0), at(1), at(9)]) == 1
    assert redelivery.run(10) == [at(0)]
    assert redelivery.count(at(0)) == 1
    assert redelivery.send_again("a", [at(0)]) == 0, "it holds it no more"
    redelivery.sent("b", at(0), 1)
    assert redelivery.send_all_again("b") == 2
    assert redelivery.count(at(0)) == 2
    redelivery.acknowledged(at(0))
    assert redelivery.count(at(0)) == 0
    assert redelivery.run(10) == [at(1)]


def test_what_is_kept_for_one_is_for_nobody_else() -> None:
    """It is kept until it is sent, acknowledged or set aside, or until its consumer has left."""
    redelivery: Redelivery[str] = Redelivery()
    redelivery.postpone(at(3))
    for entry in (3, 2, 1, 0):
        redelivery.keep("a", at(entry))
    redelivery.postpone(at(4))
    assert redelivery.run(10) == [at(4)]
    assert redelivery.kept_run("a", 3) == [at(0), at(1), at(2)]
    assert redelivery.kept_run("b", 3) == []
    assert (redelivery.waiting, redelivery.kept, redelivery.size) == (5, 4, 5)
    redelivery.sent("a", at(0), 1)
    redelivery.acknowledged(at(1))
    redelivery.set_aside(at(2))
    assert redelivery.kept_run("a", 3) == [at(3)]
    redelivery.give_back(at(2))
    assert redelivery.run(10) == [at(2), at(4)]
    assert redelivery.left("a") == 1
    assert redelivery.run(10) == [at(0), at(2), at(3), at(4)]
    assert redelivery.kept == 0
    redelivery.keep("b", at(3))
    redelivery.clear()
    assert (redelivery.waiting, redelivery.is_waiting(at(3))) == (0, False)


def test_part_of_a_batch_frees_part_of_the_room() -> None:
    redelivery: Redelivery[str] = Redelivery()
    redelivery.sent("a", at(0), 10)
    redelivery.partly_acknowledged(at(0), 4)
    assert redelivery.unacked("a") == redelivery.unacked_total == 4
    redelivery.partly_acknowledged(at(5), 4)
    assert redelivery.unacked_total == 4, "what nobody holds takes no room"
    redelivery.acknowledged(at(0))
    assert redelivery.unacked_total == 0


def test_a_run_is_what_one_read_fetches() -> None:
    redelivery: Redelivery[str] = Redelivery()
    near, far = at(2 + RUN_GAP_MAX), at(3 + 2 * RUN_GAP_MAX)
    for position in (at(0, ledger=9), far, near, at(2), at(1)):
        redelivery.postpone(position)
    assert redelivery.run(10) == [at(1), at(2), near]
    assert redelivery.run(2) == [at(1), at(2)]
    for position in (at(1), at(2), near):
        redelivery.forget(position)
    assert redelivery.run(10) == [far]
    redelivery.forget(far)
    assert redelivery.run(10) == [at(0, ledger=9)]
    redelivery.clear()
    assert redelivery.size == 0


STEP = st.tuples(
    st.sampled_from(["sent", "acknowledged", "partly", "again", "all again", "left"]),
    st.integers(0, 5),
    st.sampled_from(["a", "b"]),
    st.integers(1, 4),
)


@given(st.lists(STEP, max_size=60))
def test_the_books_balance(steps: list[tuple[str, int, str, int]]) -> None:
    """Every entry has one holder or waits, and the totals are the sums."""
    redelivery: Redelivery[str] = Redelivery()
    held: dict[Position, tuple[str, int]] = {}
    waiting: set[Position] = set()
    for kind, entry, holder, messages in steps:
        position = at(entry)
        if kind == "sent" and position not in held:
            redelivery.sent(holder, position, messages)
            held[position] = (holder, messages)
            waiting.discard(position)
        elif kind == "acknowledged":
            redelivery.acknowledged(position)
            held.pop(position, None)
            waiting.discard(position)
        elif kind == "partly":
            redelivery.partly_acknowledged(position, messages)
            if position in held:
                held[position] = (held[position][0], messages)
        elif kind in {"again", "all again", "left"}:
            back = {place for place, (who, _) in held.items() if who == holder}
            if kind == "again":
                back &= {position}
                redelivery.send_again(holder, [position])
            elif kind == "all again":
                redelivery.send_all_again(holder)
            else:
                redelivery.left(holder)
            for place in back:
                del held[place]
            waiting |= back
        assert redelivery.run(100) == sorted(waiting)
        assert redelivery.size == len(held) + len(waiting)
        assert redelivery.unacked_total == sum(count for _, count in held.values())
        for who in ("a", "b"):
            assert redelivery.unacked(who) == sum(count for owner, count in held.values() if owner == who)


def test_a_skip_takes_what_is_held_waits_or_is_kept() -> None:
    redelivery: Redelivery[str] = Redelivery()
    for entry in range(6):
        redelivery.sent("a", at(entry), 2)
    redelivery.send_again("a", [at(1), at(4)])
    redelivery.left("b")
    redelivery.send_again("a", [at(2), at(5)])
    redelivery.keep("b", at(2))
    redelivery.keep("b", at(5))
    redelivery.skip_upto(at(3))
    assert (redelivery.unacked("a"), redelivery.unacked_total) == (0, 0)
    assert redelivery.run(10) == [at(4)]
    assert redelivery.kept_run("b", 10) == [at(5)]
    assert (redelivery.size, redelivery.count(at(1))) == (2, 0)
