"""The tables of Kafka's coordinator."""

import itertools

from txn.kafka_states import COMPLETED, ENDS, IDLE, INITS, MOVES, Asker, End, KafkaTxnState

CODES = {"D": End.DECIDE, "N": End.NEXT, "R": End.REPEATED, "F": End.FENCED, "I": End.INVALID}

BY_KAFKA = {
    #                  commit    abort    commit           abort
    #                  version 1          current / last   current / last
    "Empty": "I I  I F  N F",
    "Ongoing": "D D  D F  D F",
    "PrepareCommit": "R I  F R  F I",
    "PrepareAbort": "I R  F F  F R",
    "CompleteCommit": "R I  I R  N I",
    "CompleteAbort": "I R  I F  N R",
}
"""What Apache Kafka answers to EndTxn, written down apart. PrepareAbort and CompleteAbort have K29's answer."""


def test_every_state_answers_every_init() -> None:
    """K30: the table is complete."""
    assert set(INITS) == set(itertools.product(KafkaTxnState, Asker))


def test_every_state_answers_every_end() -> None:
    """K29: the table is complete, and says what Kafka says."""
    columns = [(1, True, Asker.CURRENT), (1, False, Asker.CURRENT)]
    columns += itertools.product((2,), (True, False), (Asker.CURRENT, Asker.LAST))
    assert {
        (KafkaTxnState(name), *column): CODES[code]
        for name, row in BY_KAFKA.items()
        for column, code in zip(columns, row.split(), strict=True)
    } == ENDS


def test_states_are_idle_open_or_ending() -> None:
    """K32: only a transaction without participants is idle."""
    kinds = {state: (state.is_idle, state is KafkaTxnState.ONGOING, state.is_ending) for state in KafkaTxnState}
    assert all(sum(kind) == 1 for kind in kinds.values())
    assert set(MOVES) == set(KafkaTxnState)
    assert {state for state in KafkaTxnState if state.is_idle} == IDLE


def test_a_decision_is_final_and_leads_to_rest() -> None:
    """K27, K32: from every state the moves of the broker alone lead to an idle one, and no decision turns."""
    assert MOVES[KafkaTxnState.ONGOING] == set(COMPLETED)
    assert all(MOVES[state] == {end} and end.is_idle for state, end in COMPLETED.items())
    assert {end for end in COMPLETED.values() if "Commit" in end} == {KafkaTxnState.COMPLETE_COMMIT}
