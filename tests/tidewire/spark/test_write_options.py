import pytest

from tidewire.protocol.addresses import BrokerAddress
from tidewire.spark.errors import InvalidOption
from tidewire.spark.options import ReadOptions, Use
from tidewire.spark.write_options import Form, WriteOptions

URL = {"service_url": "pulsar://broker:6651"}
TOPIC = {"topic": "topic://public/default/x"}


def test_what_is_not_given_has_a_default() -> None:
    assert WriteOptions.parse({**URL, **TOPIC}, Use.BATCH) == WriteOptions(
        (BrokerAddress("broker", 6651),), "topic://public/default/x", Form.NONE, None, None, 600.0, 30.0
    )


def test_the_topic_may_be_left_to_a_column() -> None:
    assert WriteOptions.parse(URL, Use.STREAM).topic is None


def test_names_may_be_written_as_spark_writes_its_own() -> None:
    given = {**URL, "txnAppId": "job", "TXNVERSION": "7", "transactionTimeoutSeconds": "20", "schema": "Avro"}
    options = WriteOptions.parse(given, Use.BATCH)
    assert (options.txn_app_id, options.txn_version) == ("job", 7)
    assert (options.transaction_timeout_seconds, options.form) == (20.0, Form.AVRO)


def test_transactions_of_others_may_be_committed_with_the_batch() -> None:
    given = {**URL, "txn_app_id": "a", "txn_version": "1", "also_commit": "3:4611686018427387905, 0:1"}
    assert WriteOptions.parse(given, Use.BATCH).also_commit == ((3, 4611686018427387905), (0, 1))


def test_what_spark_adds_for_a_stream_is_no_option_of_ours() -> None:
    assert WriteOptions.parse({**URL, "checkpointLocation": "/tmp/x", "queryName": "x"}, Use.STREAM) == WriteOptions(
        (BrokerAddress("broker", 6651),), checkpoint="/tmp/x"
    )


@pytest.mark.parametrize(
    ("given", "use", "sentence"),
    [
        (
            {"topics": "x"},
            Use.BATCH,
            r"unknown option 'topics'; did you mean topic\? Format tidewire knows service_url, topic, schema",
        ),
        (
            {"starting_position": "latest"},
            Use.BATCH,
            "option starting_position is for reading; options for writing are",
        ),
        ({"topic": "x"}, Use.BATCH, "option topic: 'x' is not the full name of a topic"),
        ({"topic": "topic://a/b/c,topic://a/b/d"}, Use.BATCH, "option topic: .* is not the full name of a topic"),
        (
            {"topic": "persistent://public/default/x"},
            Use.STREAM,
            "persistent://public/default/x takes no transactions, which the sink needs; write to a topic://",
        ),
        ({"topic": ""}, Use.BATCH, "option topic is missing"),
        ({"schema": "xml"}, Use.BATCH, "option schema: 'xml' is none of none, auto, json, avro"),
        ({"txn_app_id": "a"}, Use.BATCH, "option txn_app_id: give txn_version too"),
        ({"txn_version": "1"}, Use.BATCH, "option txn_version: give txn_app_id too"),
        ({"txn_app_id": "", "txn_version": "1"}, Use.BATCH, "option txn_app_id is empty"),
        ({"txn_app_id": "a", "txn_version": "-1"}, Use.BATCH, "option txn_version: '-1' is not a whole number"),
        ({"also_commit": "1:2"}, Use.BATCH, "option also_commit: give txn_app_id and txn_version too"),
        (
            {"also_commit": "1", "txn_app_id": "a", "txn_version": "1"},
            Use.BATCH,
            "option also_commit: '1' is not a list",
        ),
        ({"txn_app_id": "a", "txn_version": "1"}, Use.STREAM, "option txn_version is not for a stream"),
        (
            {"transaction_timeout_seconds": "3601"},
            Use.BATCH,
            "transaction_timeout_seconds: '3601' is not a number of sec",
        ),
    ],
)
def test_mistakes_are_told_by_name(given: dict[str, str], use: Use, sentence: str) -> None:
    with pytest.raises(InvalidOption, match=sentence):
        WriteOptions.parse({**URL, **given}, use)


def test_the_broker_has_to_be_named() -> None:
    with pytest.raises(InvalidOption, match="option service_url is missing"):
        WriteOptions.parse(TOPIC, Use.BATCH)


def test_what_is_for_writing_is_refused_for_reading() -> None:
    with pytest.raises(InvalidOption, match="option txn_app_id is for writing; options for reading are service_url"):
        ReadOptions.parse({**URL, **TOPIC, "txnAppId": "a"})
