"""How long a broker may be silent."""

from tidewire.protocol.silence import Silence, Verdict


def test_a_silent_broker_is_asked_once_and_then_given_up() -> None:
    silence = Silence(30, now=100)
    assert (silence.due, silence.judge(129.9)) == (130, Verdict.WAIT)
    assert silence.judge(131) is Verdict.ASK
    assert (silence.due, silence.judge(160.9)) == (161, Verdict.WAIT)
    assert silence.judge(161) is Verdict.GIVE_UP


def test_whatever_arrives_begins_the_silence_anew() -> None:
    silence = Silence(30, now=0)
    silence.heard(29)
    assert (silence.due, silence.judge(30)) == (59, Verdict.WAIT)
    assert silence.judge(59) is Verdict.ASK
    silence.heard(60)
    assert (silence.due, silence.judge(89)) == (90, Verdict.WAIT)
    assert silence.judge(90) is Verdict.ASK


def test_a_program_that_was_held_up_asks_before_it_gives_up() -> None:
    """The question needs time for its answer, however late it was sent."""
    silence = Silence(30, now=0)
    assert silence.judge(1000) is Verdict.ASK
    assert silence.judge(1001) is Verdict.WAIT
    assert silence.due == 1030
