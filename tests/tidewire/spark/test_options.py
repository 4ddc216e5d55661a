import pytest

from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.positions import EARLIEST, LATEST, EntryPosition
from tidewire.spark.errors import InvalidOption
from tidewire.spark.options import ReadOptions, Use
from tidewire.spark.positions import EARLIEST_START, LATEST_START

GIVEN = {"service_url": "pulsar://127.0.0.1:6650", "topic": "topic://public/default/x"}


def test_the_two_required_options_are_enough() -> None:
    options = ReadOptions.parse(GIVEN)
    assert options == ReadOptions((BrokerAddress("127.0.0.1", 6650),), ("topic://public/default/x",))


def test_names_are_compared_as_spark_does() -> None:
    given = {"SERVICE_URL": "pulsar://b", "Topic": "persistent://a/b/c/d", "operation_Timeout_seconds": "0.5"}
    assert ReadOptions.parse(given) == ReadOptions((BrokerAddress("b", 6650),), ("persistent://a/b/c/d",), None, 0.5)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (
            {"topics": "x"},
            "unknown option 'topics'; did you mean topic? Format tidewire knows service_url, topic, topic_p",
        ),
        ({"startingPositon": "x"}, "unknown option 'startingpositon'; did you mean starting_position? Format tidewire"),
        ({"startingOffsets": "latest"}, "unknown option 'startingoffsets'; did you mean starting_position?"),
        ({"kafka.bootstrap.servers": "x"}, "did you mean service_url?"),
        ({"subscribe": "x"}, "did you mean topic?"),
        ({"zzz": "x"}, "unknown option 'zzz'; format tidewire knows service_url, topic, topic_pattern, start"),
        ({"option.topic": "x", "provider": "tidewire"}, "in place of CREATE TABLE, use CREATE TEMPORARY VIEW"),
        ({"path": "x"}, "a topic is not a path: leave it out of load and save"),
        ({"service_url": ""}, "option service_url is missing; give it as"),
        ({"topic": ""}, "option topic is missing; give it as"),
        ({"service_url": "127.0.0.1:6650"}, "option service_url: '127.0.0.1:6650' is not a broker address"),
        ({"service_url": "http://x"}, "give it as pulsar://HOST:PORT"),
        ({"service_url": "pulsar://x:y"}, "option service_url"),
        ({"service_url": "pulsar://x:70000"}, "option service_url"),
        ({"service_url": "pulsar://x:1,y:z"}, "option service_url: 'pulsar://y:z' is not a broker address"),
        ({"service_url": "pulsar://x/y"}, "give it as pulsar://HOST:PORT"),
        ({"service_url": "pulsar+ssl://x"}, "does not support; use pulsar://"),
        ({"topic": "x"}, "option topic: 'x' is not the full name of a topic"),
        ({"topic": "topic://public/x"}, "give it as topic://TENANT/NAMESPACE/NAME or persistent://"),
        ({"topic": "segment://public/default/x/0000-ffff-0"}, "is not the full name of a topic"),
        ({"operation_timeout_seconds": "soon"}, "option operation_timeout_seconds: 'soon' is not a number of seconds"),
        ({"operation_timeout_seconds": "0"}, "above 0 and up to 3600"),
        ({"operation_timeout_seconds": "nan"}, "above 0 and up to 3600"),
        ({"operation_timeout_seconds": "30000"}, "above 0 and up to 3600"),
        ({"topic": "topic://a/b/c,x"}, "option topic: 'x' is not the full name of a topic"),
        ({"topicPattern": "topic://a/b/c"}, "options topic and topic_pattern: give one of them"),
        ({"topic": "", "topic_pattern": "persistent://a/b/.*"}, "'persistent://a/b/.*' is not a pattern"),
        ({"topic": "", "topic_pattern": "topic://a/b/("}, "option topic_pattern: '(' is not a regular expression"),
        ({"starting_position": "soon"}, "option starting_position: 'soon' is not a position; give earliest, latest"),
        ({"ending_position": "2024-01-01T00:00:00"}, "has no time zone; write 2024-01-01T00:00:00Z"),
        ({"starting_position": "2024-01-01"}, "has no time zone; write 2024-01-01T00:00:00Z"),
        ({"starting_position": "{"}, "option starting_position: this is not JSON"),
        ({"starting_position": '{"topic://a/b/c": 3}'}, 'expected {"TOPIC": {"SEGMENT": "LEDGER:ENTRY"}}'),
        ({"starting_position": '{"topic://a/b/c": {"": "3"}}'}, "'3' is not a position; give LEDGER:ENTRY"),
        ({"ending_position": "earliest"}, "option ending_position: there is nothing before earliest"),
        ({"isolation": "dirty"}, "option isolation: 'dirty' is neither read_committed nor read_uncommitted"),
        ({"schema": "json"}, "option schema: 'json' is for writing; auto reads values by the topic's own schema"),
        ({"schema": "text"}, "option schema: 'text' is neither none nor auto"),
        ({"columns": "value,offset"}, "option columns: 'offset' is none of key, value, topic"),
        ({"columns": ""}, "option columns: '' is none of key, value, topic"),
        ({"failOnDataLoss": "maybe"}, "option fail_on_data_loss: 'maybe' is neither false nor true"),
        ({"partition_bytes": "1"}, "option partition_bytes: '1' is not a whole number of at least 65536"),
        ({"max_rows_per_trigger": "-1"}, "option max_rows_per_trigger: '-1' is not a whole number of at least 1"),
    ],
)
def test_a_wrong_option_is_named(changed: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        ReadOptions.parse({**GIVEN, **changed})
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_for_the_other_use_only_is_refused() -> None:
    for given, use in (
        ({"subscription": "s"}, Use.BATCH),
        ({"max_rows_per_trigger": "1"}, Use.BATCH),
        ({"ending_position": "latest"}, Use.STREAM),
        ({"push_filters": "true"}, Use.STREAM),
        ({"starting_position": "latest"}, Use.BATCH),
        ({"starting_position": '{"topic://a/b/c": {"*": "latest"}}'}, Use.STREAM),
    ):
        ReadOptions.parse({**GIVEN, **given})
        with pytest.raises(InvalidOption, match=next(iter(given))):
            ReadOptions.parse({**GIVEN, **given}, use)


def test_a_batch_begins_at_the_beginning_and_a_stream_with_what_comes() -> None:
    assert ReadOptions.parse(GIVEN, Use.BATCH).starting == EARLIEST_START
    assert ReadOptions.parse(GIVEN, Use.STREAM).starting == LATEST_START


def test_several_topics_are_given_with_commas_each_once() -> None:
    given = {**GIVEN, "topic": "topic://a/b/c, persistent://a/b/d,topic://a/b/c"}
    assert ReadOptions.parse(given).topics == ("topic://a/b/c", "persistent://a/b/d")


def test_a_pattern_matches_whole_names_of_its_namespace() -> None:
    pattern = ReadOptions.parse({"service_url": "pulsar://b", "topic_pattern": "topic://a/b/c.*d"}).pattern
    assert pattern is not None
    names = ["topic://a/b/cd", "topic://a/b/cxd", "topic://a/b/cde", "topic://a/x/cd", "persistent://a/b/cd"]
    assert [name for name in names if pattern.matches(name)] == names[:2]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", EARLIEST),
        ("LATEST", LATEST),
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
        ("2023-11-14T23:13:20.123+01:00", 1_700_000_000_123),
        ("1960-01-01T00:00:00Z", 0),
    ],
)
def test_a_place_is_a_word_or_a_time(text: str, place: EntryPosition | int) -> None:
    options = ReadOptions.parse({**GIVEN, "starting_position": text})
    assert options.starting.of("topic://public/default/x", "0000-ffff-0", LATEST) == place


def test_a_place_by_segment_leaves_the_others_as_they_are_by_default() -> None:
    text = '{"topic://a/b/c": {"0000-7fff-0": "5:41", "8000-ffff-1": "latest"}, "persistent://a/b/d": {"": "earliest"}}'
    starting = ReadOptions.parse({**GIVEN, "starting_position": text}).starting
    assert starting.of("topic://a/b/c", "0000-7fff-0", EARLIEST) == EntryPosition(5, 41)
    assert starting.of("topic://a/b/c", "8000-ffff-1", EARLIEST) == LATEST
    assert starting.of("topic://a/b/c", "8000-ffff-2", LATEST) == LATEST
    assert starting.of("persistent://a/b/d", None, LATEST) == EARLIEST
