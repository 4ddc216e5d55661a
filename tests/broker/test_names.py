"""Names: one spelling for each, and a reason for each refusal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.names import (
    HASH_MAX,
    NAME_BYTES_MAX,
    PARTITION_INDEX_MAX,
    SEGMENT_ID_MAX,
    Domain,
    InvalidTopicName,
    SegmentDescriptor,
    TopicName,
)

entities = st.from_regex(r"[-=:.a-zA-Z0-9_]{1,30}", fullmatch=True).filter(lambda text: text not in {".", ".."})
locals_ = (
    st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters="/"), min_size=1, max_size=60)
    .filter(lambda text: not text.isspace() and text not in {".", ".."})
    .flatmap(lambda text: st.sampled_from([text, f"{text}-partition-7", f"{text}-partition-07"]))
)


@st.composite
def descriptors(draw: st.DrawFn) -> SegmentDescriptor:
    start, end = sorted(draw(st.tuples(st.integers(0, HASH_MAX), st.integers(0, HASH_MAX))))
    return SegmentDescriptor(start, end, draw(st.integers(0, SEGMENT_ID_MAX)))


@st.composite
def names(draw: st.DrawFn) -> TopicName:
    domain = draw(st.sampled_from(Domain))
    segment = draw(descriptors()) if domain is Domain.SEGMENT else None
    return TopicName(domain, draw(entities), draw(entities), draw(locals_), segment)


@given(names())
def test_what_is_printed_parses_to_the_same_name(name: TopicName) -> None:
    assert TopicName.parse(str(name)) == name


@given(
    st.text(st.sampled_from("ab/:.-0fF \n%") | st.characters(), max_size=40)
    | st.text(max_size=40).map("topic://{}".format)
)
def test_any_text_is_a_name_with_one_spelling_or_is_refused(text: str) -> None:
    try:
        name = TopicName.parse(text)
    except InvalidTopicName as error:
        explanation = str(error)
    else:
        explanation = "legal"
        assert TopicName.parse(str(name)) == name
        assert text == str(name) or "://" not in text
    assert explanation.isprintable()


@given(descriptors())
def test_a_segment_descriptor_round_trips(descriptor: SegmentDescriptor) -> None:
    assert SegmentDescriptor.parse(str(descriptor)) == descriptor


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("flights", "persistent://public/default/flights"),
        ("acme/air/flights", "persistent://acme/air/flights"),
        ("flights-partition-2", "persistent://public/default/flights-partition-2"),
        ("a:b", "persistent://public/default/a:b"),
        ("a%2Fb", "persistent://public/default/a%2Fb"),
    ],
)
def test_short_names_stand_for_persistent_topics(text: str, full: str) -> None:
    assert str(TopicName.parse(text)) == full


def test_a_short_name_can_stand_for_another_domain() -> None:
    assert str(TopicName.parse("x", short_domain=Domain.TOPIC)) == "topic://public/default/x"
    assert str(TopicName.parse("persistent://t/n/x", short_domain=Domain.TOPIC)) == "persistent://t/n/x"


def test_a_segment_name_comes_apart_and_together() -> None:
    name = TopicName.parse("segment://public/default/x/8000-ffff-1")

    assert (name.tenant, name.namespace, name.local) == ("public", "default", "x")
    assert name.tenant_namespace == "public/default"
    assert name.segment == SegmentDescriptor(0x8000, 0xFFFF, 1)
    assert str(name.scalable_topic) == "topic://public/default/x"
    assert name.scalable_topic.segment_name(SegmentDescriptor(0x8000, 0xFFFF, 1)) == name
    assert name.scalable_topic.scalable_topic == name.scalable_topic


def test_partitions_name_their_topic() -> None:
    topic = TopicName.parse("persistent://t/n/x")
    partition = topic.partition(3)

    assert str(partition) == "persistent://t/n/x-partition-3"
    assert partition.partition_index == 3
    assert partition.partitioned_topic == topic
    assert topic.partition_index is None
    assert topic.partitioned_topic == topic


@pytest.mark.parametrize(
    "local",
    ["x-partition-", "x-partition-03", "x-partition--1", "x-partition-1a", "-partition-1", ".-partition-0",
     "x-partition-٣", f"x-partition-{PARTITION_INDEX_MAX + 1}", "x-partition-" + "9" * 900],
)  # fmt: skip
def test_what_only_looks_like_a_partition_is_a_topic(local: str) -> None:
    name = TopicName.parse(f"persistent://t/n/{local}")
    assert name.partition_index is None
    assert name.partitioned_topic == name


def test_only_persistent_names_have_partitions() -> None:
    scalable = TopicName.parse("topic://t/n/x-partition-1")
    assert scalable.partition_index is None
    with pytest.raises(InvalidTopicName, match="persistent://"):
        scalable.partition(0)
    with pytest.raises(InvalidTopicName, match="not itself a partition"):
        TopicName.parse("x-partition-1").partition(0)
    with pytest.raises(InvalidTopicName, match="-1"):
        TopicName.parse("x").partition(-1)
    with pytest.raises(InvalidTopicName, match="within"):
        TopicName.parse("x").partition(PARTITION_INDEX_MAX + 1)


def test_only_scalable_topics_have_segments() -> None:
    with pytest.raises(InvalidTopicName, match="no"):
        _ = TopicName.parse("x").scalable_topic
    with pytest.raises(InvalidTopicName, match="only a topic://"):
        TopicName.parse("x").segment_name(SegmentDescriptor(0, HASH_MAX, 0))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("persistent://", "it must be <domain>://"),
        ("persistent://t/n", "it must be <domain>://"),
        ("t/n", "it must be <domain>://"),
        ("t//x", "namespace is empty"),
        ("/n/x", "tenant is empty"),
        ("/x/", "tenant is empty"),
        ("t/n/", "own name is empty"),
        ("persistent://t/n/x/", "cluster"),
        ("persistent://t/c/n/x", "cluster"),
        ("persistent://t/c/n/x/y", "it must be <domain>://"),
        ("topic://t/n/x/0000-ffff-0", "cluster"),
        ("non-persistent://t/n/x", "non-persistent"),
        ("Persistent://t/n/x", "begin with"),
        ("http://t/n/x", "begin with"),
        ("://t/n/x", "begin with"),
        (" persistent://t/n/x", "begin with"),
        ("a b/n/x", "tenant may contain only"),
        ("t/ü/x", "namespace may contain only"),
        ("../n/x", "tenant must not be"),
        ("t/./x", "namespace must not be"),
        ("t/n/..", "must not be . or .."),
        (".", "must not be . or .."),
        ("x\x00", "control"),
        ("x\ny", "control"),
        ("x\x7f", "control"),
        ("x\u2028y", "separators"),
        ("x\ud800", "surrogates"),
        ("segment://t/n/x", "name must be segment://"),
        ("segment://t/n/x/0000-ffff-0/y", "name must be segment://"),
        ("segment://t/n/x/", "written like"),
        ("segment://t/n/x/0000-ffff", "written like"),
        ("segment://t/n/x/8000-FFFF-1", "written like"),
        ("segment://t/n/x/800-ffff-1", "written like"),
        ("segment://t/n/x/08000-ffff-1", "written like"),
        ("segment://t/n/x/8000-fffg-1", "written like"),
        ("segment://t/n/x/8000-ffff-01", "written like"),
        ("segment://t/n/x/8000-ffff--1", "written like"),
        ("segment://t/n/x/8000-ffff-+1", "written like"),
        ("segment://t/n/x/8000-ffff-1\n", "written like"),
        ("segment://t/n/x/8000-ffff-٣", "written like"),
        ("segment://t/n/x/8000-7fff-1", "upwards"),
        (f"segment://t/n/x/0000-ffff-{SEGMENT_ID_MAX + 1}", "id must be from 0"),
        ("segment://t/n/x/0000-ffff-" + "9" * 900, "id must be from 0"),
        ("x" * (NAME_BYTES_MAX + 1), "at most 1024 bytes"),
        ("ü" * 513, "at most 1024 bytes"),
    ],
)  # fmt: skip
def test_an_illegal_name_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidTopicName, match=reason) as caught:
        TopicName.parse(text)
    assert caught.value.name == text
    assert len(str(caught.value)) < 2_000


def test_a_name_may_be_as_long_as_the_limit() -> None:
    prefix = "persistent://t/n/"
    assert TopicName.parse(prefix + "x" * (NAME_BYTES_MAX - len(prefix))).local.startswith("x")


def test_parts_are_checked_however_a_name_is_made() -> None:
    with pytest.raises(InvalidTopicName, match="must not contain /"):
        TopicName(Domain.TOPIC, "t", "n", "a/b")
    with pytest.raises(InvalidTopicName, match="no others"):
        TopicName(Domain.SEGMENT, "t", "n", "x")
    with pytest.raises(InvalidTopicName, match="no others"):
        TopicName(Domain.TOPIC, "t", "n", "x", SegmentDescriptor(0, 1, 0))
    with pytest.raises(InvalidTopicName, match="upwards"):
        SegmentDescriptor(0, HASH_MAX + 1, 0)
    with pytest.raises(InvalidTopicName, match="id must be"):
        SegmentDescriptor(0, 1, -1)
