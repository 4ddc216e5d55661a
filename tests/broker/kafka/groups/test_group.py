"""A group, request by request: the tables of `broker/kafka/groups/group.py`, and what Kafka's clients rely on."""

from collections.abc import Callable

import pytest

from broker.kafka.groups.generations import ASSIGNMENT_BYTES_MAX, MOVES, SEEN_TOPICS_MAX
from broker.kafka.groups.group import MEMBERS_BYTES_MAX
from broker.kafka.groups.values import (
    DescribedMember,
    GroupError,
    GroupSettings,
    GroupState,
    JoinedMember,
    JoinRequest,
    Leaver,
    Protocol,
    SyncAnswer,
)
from tests.support.kafka_groups import RANGE, REBALANCE_MS, SESSION_MS, STICKY, DrivenGroup, assignment, join_request

EMPTY, PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
COMPLETING, STABLE, DEAD = GroupState.COMPLETING_REBALANCE, GroupState.STABLE, GroupState.DEAD
OTHER = Protocol("range", b"t1,t2")


def in_state(state: GroupState) -> DrivenGroup:
    """Two members, `one` that leads and `two`, or none, in this state."""
    group = DrivenGroup()
    if state is EMPTY:
        return group
    group.stable("one", "two")
    if state in (PREPARING, COMPLETING):
        group.join("", join_request("one"))
    if state is COMPLETING:
        group.join("", join_request("two"))
    if state is DEAD:
        group.close(GroupError.NOT_COORDINATOR)
    assert group.group.state is state
    return group


def test_a_first_member_goes_all_the_way() -> None:
    """Its join is answered at once, since a dev broker waits for nobody else; the leader sees everybody."""
    group = DrivenGroup()
    ticket = group.join("one")
    answer = group.joined[ticket]
    assert (answer.error, answer.member_id, answer.generation, answer.leader) == (None, "one", 1, "one")
    assert (answer.protocol_type, answer.protocol) == ("consumer", "range")
    assert answer.members == (JoinedMember("one", None, b"t1"),)
    synced = group.synced[group.sync("one", {"one": b"all"}, protocol_type="consumer", protocol="range")]
    assert synced == SyncAnswer(None, "consumer", "range", b"all")
    assert group.heartbeat("one") is None
    assert [record.record.generation for record in group.records] == [1]


def test_a_member_asks_for_an_id_first() -> None:
    """KIP-394: nobody is in the group before it joins with the id that it was given, and the id ends."""
    group = DrivenGroup()
    asked = join_request(needs_known_id=True)
    answer = group.joined[group.join("one", asked)]
    assert (answer.error, answer.member_id) == (GroupError.MEMBER_ID_REQUIRED, "one")
    assert (group.group.state, group.group.is_vacant) == (EMPTY, False)
    ticket = group.join("", join_request("one", needs_known_id=True))
    assert group.joined[ticket].generation == 1
    group.join("two", asked)
    group.pass_time(SESSION_MS - 1)
    assert group.heartbeat("one") is None
    group.pass_time(1)
    answer = group.joined[group.join("", join_request("two"))]
    assert answer.error is GroupError.UNKNOWN_MEMBER_ID


def test_a_static_member_needs_no_id_first() -> None:
    """KIP-345."""
    group = DrivenGroup()
    assert group.joined[group.join("one", join_request(instance_id="s", needs_known_id=True))].generation == 1


def test_a_rebalance_waits_for_a_member_that_was_given_an_id() -> None:
    """KIP-394, so that a group that starts does not rebalance for each member."""
    group = in_state(STABLE)
    group.join("three", join_request(needs_known_id=True))
    one = group.join("", join_request("one"))
    two = group.join("", join_request("two"))
    assert not {one, two} & group.joined.keys()
    group.leave(Leaver("three"))
    assert {group.joined[each].generation for each in (one, two)} == {3}


Act = Callable[[DrivenGroup], object]
KNOWN = GroupError.UNKNOWN_MEMBER_ID


def _join(request: JoinRequest) -> Act:
    def act(group: DrivenGroup) -> object:
        before = group.group.generation
        ticket = group.join("fresh", request)
        if ticket not in group.joined:
            return "waits"
        answer = group.joined[ticket]
        return answer.error or ("told" if answer.generation == before else "begins")

    return act


@pytest.mark.parametrize(
    ("request_", "outcomes"),
    [
        # A leader that has joined in PREPARING waits for `two`, which has not.
        (join_request(), {EMPTY: "begins", PREPARING: "waits", COMPLETING: "waits", STABLE: "waits"}),
        (join_request("one"), {EMPTY: KNOWN, PREPARING: "waits", COMPLETING: "told", STABLE: "waits"}),
        (join_request("two"), {EMPTY: KNOWN, PREPARING: "begins", COMPLETING: "told", STABLE: "told"}),
        (join_request("two", protocols=(OTHER,)), {PREPARING: "begins", COMPLETING: "waits", STABLE: "waits"}),
        (join_request("who"), dict.fromkeys([EMPTY, PREPARING, COMPLETING, STABLE], KNOWN)),
        (join_request("two", instance_id="s"), dict.fromkeys([PREPARING, COMPLETING, STABLE], KNOWN)),
        (
            join_request(protocols=(STICKY,)),
            {EMPTY: "begins", **dict.fromkeys([PREPARING, STABLE], GroupError.INCONSISTENT_GROUP_PROTOCOL)},
        ),
        (
            join_request(protocol_type="connect"),
            {EMPTY: "begins", **dict.fromkeys([PREPARING, STABLE], GroupError.INCONSISTENT_GROUP_PROTOCOL)},
        ),
        (join_request(protocols=()), dict.fromkeys([EMPTY, STABLE], GroupError.INCONSISTENT_GROUP_PROTOCOL)),
        (join_request(protocol_type=""), {EMPTY: GroupError.INCONSISTENT_GROUP_PROTOCOL}),
        (join_request(session_ms=5_999), {EMPTY: GroupError.INVALID_SESSION_TIMEOUT}),
        (join_request(session_ms=1_800_001), {EMPTY: GroupError.INVALID_SESSION_TIMEOUT}),
        (join_request("one"), {DEAD: GroupError.COORDINATOR_NOT_AVAILABLE}),
    ],
)
def test_joins(request_: JoinRequest, outcomes: dict[GroupState, object]) -> None:
    """The table of joins, and what refuses them."""
    assert {state: _join(request_)(in_state(state)) for state in outcomes} == outcomes


def _sync(group: DrivenGroup, member_id: str, **how: str | int) -> object:
    ticket = group.sync(member_id, **how)  # type: ignore[arg-type]
    if ticket not in group.synced:
        return "waits"
    return group.synced[ticket].error or group.synced[ticket].assignment


@pytest.mark.parametrize(
    ("act", "outcomes"),
    [
        (
            lambda group: _sync(group, "two"),
            {
                EMPTY: GroupError.UNKNOWN_MEMBER_ID,
                PREPARING: GroupError.REBALANCE_IN_PROGRESS,
                COMPLETING: "waits",
                STABLE: b"two",
                DEAD: GroupError.COORDINATOR_NOT_AVAILABLE,
            },
        ),
        (lambda group: _sync(group, "two", generation=7), {STABLE: GroupError.ILLEGAL_GENERATION}),
        (lambda group: _sync(group, "two", instance_id="s"), {STABLE: GroupError.UNKNOWN_MEMBER_ID}),
        (
            lambda group: _sync(group, "two", protocol="sticky"),
            dict.fromkeys([COMPLETING, STABLE], GroupError.INCONSISTENT_GROUP_PROTOCOL),
        ),
        (
            lambda group: _sync(group, "two", protocol_type="connect"),
            dict.fromkeys([COMPLETING, STABLE], GroupError.INCONSISTENT_GROUP_PROTOCOL),
        ),
        (
            lambda group: group.heartbeat("two"),
            {
                EMPTY: GroupError.UNKNOWN_MEMBER_ID,
                PREPARING: GroupError.REBALANCE_IN_PROGRESS,
                COMPLETING: None,
                STABLE: None,
                DEAD: GroupError.COORDINATOR_NOT_AVAILABLE,
            },
        ),
        (lambda group: group.heartbeat("two", generation=7), {STABLE: GroupError.ILLEGAL_GENERATION}),
        (
            lambda group: group.group.check_commit("two", None, group.group.generation, group.now_ms),
            {
                EMPTY: GroupError.UNKNOWN_MEMBER_ID,
                PREPARING: None,
                COMPLETING: GroupError.REBALANCE_IN_PROGRESS,
                STABLE: None,
                DEAD: GroupError.COORDINATOR_NOT_AVAILABLE,
            },
        ),
        (
            lambda group: group.group.check_commit("two", None, group.group.generation - 1, group.now_ms),
            dict.fromkeys([PREPARING, COMPLETING, STABLE], GroupError.ILLEGAL_GENERATION),
        ),
        (
            lambda group: group.group.check_commit("who", None, group.group.generation, group.now_ms),
            dict.fromkeys([PREPARING, COMPLETING, STABLE], GroupError.UNKNOWN_MEMBER_ID),
        ),
        (
            # A consumer that only stores offsets under the group's name.
            lambda group: group.group.check_commit("", None, -1, group.now_ms),
            {EMPTY: None, **dict.fromkeys([PREPARING, COMPLETING, STABLE], GroupError.UNKNOWN_MEMBER_ID)},
        ),
        (
            lambda group: group.group.check_commit("two", None, -1, group.now_ms),
            {EMPTY: None, STABLE: GroupError.ILLEGAL_GENERATION},
        ),
        (
            lambda group: group.leave(Leaver("two"), Leaver("two"), Leaver("who"), Leaver("", "s")),
            {
                **{state: [None, *([GroupError.UNKNOWN_MEMBER_ID] * 3)] for state in (PREPARING, COMPLETING, STABLE)},
                EMPTY: [GroupError.UNKNOWN_MEMBER_ID] * 4,
                DEAD: [GroupError.COORDINATOR_NOT_AVAILABLE] * 4,
            },
        ),
    ],
)
def test_other_requests(act: Act, outcomes: dict[GroupState, object]) -> None:
    """K34: the table of the other requests."""
    assert {state: act(in_state(state)) for state in outcomes} == outcomes


def test_a_member_that_leaves_makes_a_rebalance() -> None:
    group = in_state(STABLE)
    assert group.leave(Leaver("one")) == [None]
    assert (group.group.state, group.heartbeat("two")) == (PREPARING, GroupError.REBALANCE_IN_PROGRESS)
    answer = group.joined[group.join("", join_request("two"))]
    assert (answer.generation, answer.leader, len(answer.members)) == (3, "two", 1)
    group.leave(Leaver("two"))
    assert (group.group.state, group.group.generation) == (EMPTY, 4)
    assert group.records[-1].record.members == ()


def test_the_first_rebalance_waits_for_more_members() -> None:
    """Each newcomer prolongs it, up to the rebalance timeout; later rebalances do not wait."""
    group = DrivenGroup(GroupSettings(initial_rebalance_delay_ms=3_000))
    tickets = [group.join("one", join_request(rebalance_ms=7_000))]
    group.pass_time(2_999)
    tickets.append(group.join("two", join_request(rebalance_ms=7_000)))
    group.pass_time(3_000)
    assert not group.joined
    tickets.append(group.join("three", join_request(rebalance_ms=7_000)))
    group.pass_time(1_000)
    assert not group.joined, "the third wait is shorter, because 7 s is the end"
    group.pass_time(1)
    assert [group.joined[ticket].generation for ticket in tickets] == [1, 1, 1]


def test_the_protocol_with_the_most_votes_wins() -> None:
    """Each member votes for the first of its protocols that all support."""
    group = DrivenGroup()
    third = Protocol("third", b"")
    group.join("one", join_request(protocols=(RANGE, STICKY)))
    group.join("two", join_request(protocols=(third, STICKY, RANGE)))
    group.join("three", join_request(protocols=(STICKY, RANGE)))
    group.rejoin("one")
    assert {answer.protocol for answer in group.joined.values()} == {"range", "sticky"}
    assert group.joined[4].members[1] == JoinedMember("two", None, STICKY.metadata)


def test_silence_ends_a_membership() -> None:
    """The session timeout counts from the last sign of life."""
    group = in_state(STABLE)
    group.pass_time(SESSION_MS - 1)
    assert group.heartbeat("one") is None
    group.pass_time(1)
    assert group.group.state is PREPARING
    assert group.heartbeat("two") is GroupError.UNKNOWN_MEMBER_ID
    assert group.heartbeat("one") is GroupError.REBALANCE_IN_PROGRESS


def test_commits_are_signs_of_life() -> None:
    group = in_state(STABLE)
    group.pass_time(SESSION_MS - 1)
    group.heartbeat("one")
    assert group.group.check_commit("two", None, 2, group.now_ms) is None
    group.pass_time(1)
    assert group.group.state is STABLE


def test_a_rebalance_goes_on_without_those_that_do_not_join() -> None:
    """It waits as long as the most patient member asks for, even if others beat on."""
    group = in_state(PREPARING)
    for _ in range(REBALANCE_MS // 5_000):
        assert group.group.generation == 2
        group.heartbeat("two")
        group.pass_time(5_000)
    assert (group.group.generation, group.group.state) == (3, COMPLETING)
    assert group.heartbeat("two") is GroupError.UNKNOWN_MEMBER_ID


def test_a_member_that_never_asks_for_its_assignment_is_removed() -> None:
    """Otherwise a leader that does not assign would hold up all others for ever."""
    group = in_state(STABLE)
    for member in ("one", "two"):
        group.join("", join_request(member, session_ms=1_000_000))
    waiting = group.sync("two")
    group.pass_time(REBALANCE_MS - 1)
    assert waiting not in group.synced
    group.pass_time(1)
    assert group.synced[waiting].error is GroupError.REBALANCE_IN_PROGRESS
    assert group.heartbeat("one") is GroupError.UNKNOWN_MEMBER_ID
    assert group.group.state is PREPARING


def test_a_new_member_does_not_wait_for_ever() -> None:
    """It sends no heartbeats, so the broker cannot tell whether it is still there."""
    group = DrivenGroup(GroupSettings(new_member_timeout_ms=20_000))
    group.stable("one")
    ticket = group.join("two")
    for _ in range(4):
        assert ticket not in group.joined
        group.heartbeat("one")
        group.pass_time(5_000)
    assert group.joined[ticket].error is GroupError.UNKNOWN_MEMBER_ID


def test_nobody_has_an_assignment_that_is_not_stored() -> None:
    """D4: whoever takes over reads what members have. A generation that ended meanwhile gives nothing."""
    group = in_state(COMPLETING)
    group.stores_at_once = False
    one, two = group.sync("one", {"one": b"a"}), group.sync("two")
    assert not {one, two} & group.synced.keys()
    group.store()
    assert (group.synced[one].assignment, group.synced[two].assignment) == (b"a", b"")
    group.join("", join_request("one"))
    group.join("", join_request("two"))
    again = group.sync("one", {"one": b"b"})
    group.join("three")
    assert group.synced[again].error is GroupError.REBALANCE_IN_PROGRESS
    group.store()
    assert group.group.state is PREPARING


def test_an_assignment_that_does_not_fit_a_record_is_refused() -> None:
    """E7: everybody is told, and the members try again."""
    group = in_state(COMPLETING)
    two = group.sync("two")
    one = group.sync("one", {"one": bytes(ASSIGNMENT_BYTES_MAX)})
    assert {group.synced[each].error for each in (one, two)} == {GroupError.UNKNOWN_SERVER_ERROR}
    assert group.group.state is PREPARING


def test_a_request_that_is_sent_again_replaces_the_first() -> None:
    """The first one is answered too, so that nothing waits for ever."""
    group = in_state(PREPARING)
    first, second = group.join("", join_request("one")), group.join("", join_request("one"))
    assert group.joined[first].error is GroupError.REBALANCE_IN_PROGRESS
    group.join("", join_request("two"))
    assert group.joined[second].error is None
    first, second = group.sync("two"), group.sync("two")
    assert group.synced[first].error is GroupError.REBALANCE_IN_PROGRESS
    group.sync("one", {"two": b"a"})
    assert group.synced[second].assignment == b"a"


# Static members (KIP-345)


def test_a_static_member_restarts_without_a_rebalance() -> None:
    """KIP-345: it gets a new id and its assignment, once that is stored. Whoever uses the former id is told to end."""
    group = DrivenGroup().stable("s1", "s2")
    group.stores_at_once = False
    ticket = group.join("s2-again", join_request(instance_id="s2"))
    assert ticket not in group.joined
    group.store()
    answer = group.joined[ticket]
    assert (answer.error, answer.generation, answer.leader, answer.members) == (None, 2, "s1", ())
    assert group.group.state is STABLE
    assert group.records[-1].record.members[1].member_id == "s2-again"
    assert group.synced[group.sync("s2-again", instance_id="s2")].assignment == b"s2"
    for error in (
        group.group.heartbeat("s2", "s2", 2, group.now_ms),
        group.group.check_commit("s2", "s2", 2, group.now_ms),
        group.synced[group.sync("s2", instance_id="s2")].error,
        group.joined[group.join("", join_request("s2", instance_id="s2"))].error,
        *group.leave(Leaver("s2", "s2")),
    ):
        assert error is GroupError.FENCED_INSTANCE_ID


@pytest.mark.parametrize("can_skip", [True, False])
def test_a_static_leader_that_restarts_assigns_nothing(can_skip: bool) -> None:
    """KIP-814: nobody would get what it assigns. An old client does not know that it leads."""
    group = DrivenGroup().stable("s1", "s2")
    answer = group.joined[group.join("s1-again", join_request(instance_id="s1", can_skip_assignment=can_skip))]
    assert (answer.skip_assignment, len(answer.members)) == ((True, 2) if can_skip else (False, 0))
    assert (answer.leader == "s1-again") is can_skip
    assert group.group.record().leader == "s1-again"


def test_a_static_member_whose_protocols_turn_the_vote_makes_a_rebalance() -> None:
    group = DrivenGroup().stable("s1", protocols=(RANGE, STICKY))
    ticket = group.join("s1-again", join_request(instance_id="s1", protocols=(STICKY, RANGE)))
    assert (group.joined[ticket].generation, group.joined[ticket].protocol) == (2, "sticky")


def test_a_static_member_that_restarts_before_the_assignment_makes_a_rebalance() -> None:
    """Its leader knows the former id, and would give nothing to the new one."""
    group = DrivenGroup().stable("s1", "s2")
    group.join("", join_request("s1", instance_id="s1"))
    group.join("", join_request("s2", instance_id="s2"))
    waiting = group.sync("s2", instance_id="s2")
    group.join("s2-again", join_request(instance_id="s2"))
    assert group.synced[waiting].error is GroupError.FENCED_INSTANCE_ID
    assert group.group.state is PREPARING


def test_a_static_member_that_restarts_while_it_joins_takes_the_place_of_its_former_self() -> None:
    group = DrivenGroup().stable("s1", "s2")
    waiting = group.join("", join_request("s1", instance_id="s1"))
    again = group.join("s1-again", join_request(instance_id="s1"))
    assert group.joined[waiting].error is GroupError.FENCED_INSTANCE_ID
    group.rejoin("s2")
    assert (group.joined[again].generation, group.joined[again].leader) == (3, "s1-again")


def test_a_restarted_member_goes_along_with_a_rebalance_that_begins_meanwhile() -> None:
    """Its join waits for its id to be stored. If a rebalance begins first, it waits for the next generation."""
    group = DrivenGroup().stable("s1", "s2", "three")
    group.stores_at_once = False
    ticket = group.join("s2-again", join_request(instance_id="s2"))
    group.join("", join_request("s1", instance_id="s1"))
    group.store()
    assert ticket not in group.joined
    group.join("", join_request("three"))
    assert group.joined[ticket].generation == 4


@pytest.mark.parametrize("has_left", [False, True])
def test_the_next_coordinator_knows_a_static_member_that_restarted_in_a_rebalance(has_left: bool) -> None:
    """KIP-345: its new id is stored before it learns it. The coordinator dies before the assignment is stored.

    Otherwise the next one would fence the only member of that instance, which ends its process.
    """
    group = DrivenGroup().stable("s1", "s2")
    group.stores_at_once = False
    group.join("", join_request("s1", instance_id="s1"))
    if has_left:
        group.leave(Leaver("s2", "s2"))
    ticket = group.join("s2-again", join_request(instance_id="s2"))
    group.rejoin("s1")
    assert ticket not in group.joined
    group.store()
    generation = group.joined[ticket].generation
    after = DrivenGroup(record=group.records[-1].record)
    assert after.group.heartbeat("s2-again", "s2", generation, after.now_ms) is GroupError.ILLEGAL_GENERATION
    assert after.group.heartbeat("s2", "s2", generation - 1, after.now_ms) is GroupError.FENCED_INSTANCE_ID
    # What it has of the last generation stands.
    assert after.group.record().members[1].assignment == b"s2"


@pytest.mark.parametrize("others", [(), ("m",)])
def test_a_static_member_that_comes_back_waits_until_its_former_self_is_forgotten(others: tuple[str, ...]) -> None:
    """KIP-345: the coordinator dies before it has stored that the former self is gone.

    Otherwise the next one would fence the only member of that instance, which ends its process.
    """
    group = DrivenGroup().stable("s1", *others)
    group.stores_at_once = False
    group.leave(Leaver("s1", "s1"))
    for other in others:
        group.rejoin(other)
        group.sync(other, {other: b"all"})
    ticket = group.join("s1-again", join_request(instance_id="s1"))
    for other in others:
        group.rejoin(other)
    assert ticket not in group.joined
    group.store()
    assert group.joined[ticket].error is None
    after = DrivenGroup(record=group.records[-1].record)
    generation = group.joined[ticket].generation
    assert after.group.heartbeat("s1-again", "s1", generation, after.now_ms) is GroupError.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_the_new_id_of_a_static_member_that_is_being_stored() -> None:
    """KIP-345: it restarted in a stable group, and a rebalance began at once. Nobody learns of a generation before."""
    group = DrivenGroup().stable("s1", "s2")
    group.stores_at_once = False
    ticket = group.join("s2-again", join_request(instance_id="s2"))
    group.rejoin("s1")
    leader = group.join("", join_request("s1", instance_id="s1"))
    assert group.group.state is PREPARING
    assert not {ticket, leader} & group.joined.keys()
    group.store()
    assert [group.joined[each].generation for each in (ticket, leader)] == [3, 3]


def test_a_static_member_keeps_its_place_while_it_is_away() -> None:
    """A rebalance does not remove it, as only its session does. With all away, the group waits."""
    group = DrivenGroup().stable("s1", "s2")
    group.join("", join_request("s1", instance_id="s1", rebalance_ms=7_000))
    group.join("", join_request("s2", instance_id="s2", rebalance_ms=7_000))
    group.assign("s1", "s2")
    group.leave(Leaver("", "s1"))
    group.pass_time(7_000)
    assert (group.group.state, len(group.group.record().members)) == (PREPARING, 1)
    group.pass_time(3_000)
    assert group.group.state is EMPTY


def test_an_administrator_removes_a_static_member_by_its_instance() -> None:
    """LeaveGroup 3 and later."""
    group = DrivenGroup().stable("s1", "s2")
    assert group.leave(Leaver("", "s1"), Leaver("", "s3")) == [None, GroupError.UNKNOWN_MEMBER_ID]
    assert group.group.heartbeat("s1", "s1", 2, group.now_ms) is GroupError.UNKNOWN_MEMBER_ID


# Bounds


def test_a_full_group_takes_no_more_members() -> None:
    """E7: those in it stay; in a rebalance, the first to join have the places."""
    group = DrivenGroup(GroupSettings(group_size_max=2)).stable("one", "two")
    answer = group.joined[group.join("three")]
    assert (answer.error, answer.member_id, group.group.state) == (GroupError.GROUP_MAX_SIZE_REACHED, "", STABLE)
    group.leave(Leaver("two"))
    group.join("three")
    group.join("four")
    assert group.joined[group.join("", join_request("one"))].error is GroupError.GROUP_MAX_SIZE_REACHED
    assert {member.member_id for member in group.group.record().members} == {"three", "four"}
    assert group.group.state is COMPLETING, "it waits for nobody any more"


def test_ids_that_wait_for_their_members_are_bounded() -> None:
    """E7: as many as may be members."""
    group = DrivenGroup(GroupSettings(group_size_max=2))
    errors = [group.joined[group.join(str(number), join_request(needs_known_id=True))].error for number in range(3)]
    assert errors == [GroupError.MEMBER_ID_REQUIRED, GroupError.MEMBER_ID_REQUIRED, GroupError.GROUP_MAX_SIZE_REACHED]


def test_what_members_say_of_themselves_is_bounded() -> None:
    """E7: a member that says too much is turned away, and the others stay."""
    group = DrivenGroup().stable("one", "two")
    large = (Protocol("range", bytes(MEMBERS_BYTES_MAX)),)
    assert group.joined[group.join("three", join_request(protocols=large))].error is GroupError.GROUP_MAX_SIZE_REACHED
    answer = group.joined[group.join("", join_request("two", protocols=large))]
    assert answer.error is GroupError.GROUP_MAX_SIZE_REACHED
    assert [member.member_id for member in group.group.record().members] == ["one"]


# What others see


def test_only_a_stable_group_shows_what_it_agreed_on() -> None:
    group = in_state(STABLE)
    described = group.group.described()
    assert (described.state, described.protocol_type, described.protocol) == (STABLE, "consumer", "range")
    assert described.members[1] == DescribedMember("two", None, "client", "/127.0.0.1", b"t1", b"two")
    described = in_state(COMPLETING).group.described()
    assert (described.state, described.protocol) == (COMPLETING, "")
    assert described.members[1] == DescribedMember("two", None, "client", "/127.0.0.1", b"", b"")


def test_another_coordinator_goes_on_from_the_record() -> None:
    """Members keep their generation and assignments, and have a session's time to be heard of."""
    before = DrivenGroup().stable("s1", "two")
    after = DrivenGroup(record=before.group.record())
    assert after.group.record() == before.group.record()
    assert after.group.state is STABLE
    assert after.group.heartbeat("s1", "s1", 2, after.now_ms) is None
    assert after.synced[after.sync("two")].assignment == b"two"
    after.pass_time(SESSION_MS)
    assert after.group.state is EMPTY


def test_nobody_waits_in_a_group_that_ends() -> None:
    group = in_state(PREPARING)
    group.join("three", join_request(needs_known_id=True))
    group.close(GroupError.NOT_COORDINATOR)
    assert list(group.joined.values())[-1].error is GroupError.NOT_COORDINATOR
    group = in_state(COMPLETING)
    ticket = group.sync("two")
    group.close(GroupError.NOT_COORDINATOR)
    assert group.synced[ticket].error is GroupError.NOT_COORDINATOR
    assert group.group.wake_ms is None


def test_each_state_can_be_left_except_the_last() -> None:
    assert {state for state, after in MOVES.items() if not after} == {DEAD}
    assert all(DEAD in after for state, after in MOVES.items() if state is not DEAD)


def test_a_group_remembers_how_many_partitions_it_saw_first() -> None:
    """K41: through generations, and until it is empty. The next coordinator reads it."""
    group = DrivenGroup().stable("one")
    group.join("two")
    group.rejoin("one")
    group.sync("one", {"one": b"", "two": b""}, seen={"t": 1})
    assert group.group.record().seen == {"t": 1}
    group.join("three")
    group.rejoin("one", "two")
    group.sync("one", {}, seen={"t": 3, "u": 2})
    group.sync("two", seen={"t": 9})
    assert group.group.record().seen == {"t": 1, "u": 2}
    after = DrivenGroup(record=group.records[-1].record)
    assert after.group.record().seen == {"t": 1, "u": 2}
    group.leave(*(Leaver(member) for member in ("one", "two", "three")))
    assert group.group.record().seen == {}


def test_a_leader_that_knew_fewer_partitions_assigns_anew() -> None:
    """K41: it is told once of each number. Others, and a group that rebalances anyway, are not asked."""
    group = DrivenGroup().stable("one")
    group.join("two")
    group.rejoin("one")
    group.sync("one", {"one": assignment({"t": (0, 1)})}, seen={"t": 2})
    assert (group.group.known_to("one"), group.group.known_to("two")) == ({"t": 2}, {})
    for partitions in ({"t": 2}, {"u": 9}, {}):
        group.partitions_are(partitions)
        assert group.group.state is STABLE
    group.partitions_are({"t": 4})
    assert (group.group.state, group.group.known_to("one")) == (PREPARING, {})
    assert group.heartbeat("two") is GroupError.REBALANCE_IN_PROGRESS
    group.rejoin("one", "two")
    group.sync("one", {"one": assignment({"t": (0, 1)})}, seen={"t": 2})
    group.partitions_are({"t": 4})
    assert (group.group.state, group.group.known_to("one")) == (STABLE, {"t": 4})
    after = DrivenGroup(record=group.records[-1].record)
    assert after.group.known_to("one") == {"t": 2}, "the next coordinator tells it once more"
    group.leave(Leaver("one"), Leaver("two"))
    assert group.group.known_to("one") == {}


def test_what_a_group_remembers_is_bounded() -> None:
    """E8: topics that it reads now come first, with what it knew of them."""
    group = DrivenGroup().stable("one")
    group.join("two")
    group.rejoin("one")
    group.sync("one", {}, seen={f"t{n}": n for n in range(SEEN_TOPICS_MAX)})
    group.join("three")
    group.rejoin("one", "two")
    group.sync("one", {}, seen={"u": 7, "t5": 9})
    seen = group.group.record().seen
    assert len(seen) == SEEN_TOPICS_MAX
    assert (seen["u"], seen["t5"]) == (7, 5)
