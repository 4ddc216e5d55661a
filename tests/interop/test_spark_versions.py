"""Each supported version of Spark reads and writes with the same wheel, in an environment of its own.

Spark 4.3 is the one that all other tests use. Here it shows that the stories are right for every version.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pyspark
import pytest
import trio

import tidewire
from scripts.need import place
from tests.support.admin import Admin
from tests.support.processes import RunningBroker, running_broker
from tests.support.spark_process import RunningSpark, SparkFailure, spark_process

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

CHECKOUT: Final = Path(__file__).parents[2]
OLDER: Final = ("4.0.5", "4.1.4", "4.2.1")
UNSUPPORTED: Final = "3.5.9"
SITE: Final = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this checkout, and unpack it into a folder for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("wheel")
    tools = Path(sys.executable).parent
    subprocess.run([tools / "hatchling", "build", "-t", "wheel", "-d", folder / "built"], cwd=CHECKOUT, check=True)
    (built,) = (folder / "built").glob("*.whl")
    unpacking = ("pip", "install", "--quiet", "--offline", "--no-deps", "--target", str(folder / "site"), str(built))
    subprocess.run([str(tools / "uv"), *unpacking], check=True)
    return folder / "site"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("broker") / "data", "--message-bytes-max", "64KiB") as broker:
        yield broker


@pytest.fixture(scope="module", params=[*OLDER, pyspark.__version__])
def spark(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningSpark]:
    version = request.param
    python = place(f"spark:{version}") if version in OLDER else Path(sys.executable)
    script = CHECKOUT / "tests" / "support" / "spark_versions" / "jobs.py"
    folder = tmp_path_factory.mktemp("spark")
    with spark_process(python, script, [], folder, {"PYTHONPATH": str(wheel)}) as spark:
        assert spark.version == version
        yield spark


@pytest.fixture
def topic(broker: RunningBroker) -> Callable[[], dict[str, str]]:
    """Make the options for a new topic of two segments."""

    def new() -> dict[str, str]:
        return {"service_url": broker.service_url, "topic": Admin(broker.http_url).new_topic(2)}

    return new


NewTopic = Callable[[], dict[str, str]]


def send(topic: dict[str, str], first: int, last: int) -> list[str]:
    """Send values to ten keys, each in an entry of its own, and return them."""
    values = [f"{number:06}" for number in range(first, last)]

    async def story() -> None:
        connected = tidewire.connect(topic["service_url"])
        with trio.fail_after(60):
            async with connected as client, client.producer(topic["topic"], batching=False) as producer:
                for value in values:
                    await producer.enqueue(value.encode(), key=f"k{int(value) % 10}")

    trio.run(story)
    return values


def copied(spark: RunningSpark, target: dict[str, str]) -> dict[str, list[str]]:
    """Return the values of each key, in the order of the topic."""
    found: dict[str, list[str]] = {}
    for key, value, _, _ in spark.ask("read", options=target):
        found.setdefault(key, []).append(value)
    return found


def by_key(values: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for value in sorted(values):
        found.setdefault(f"k{int(value) % 10}", []).append(value)
    return found


def test_a_batch_reads_what_a_batch_wrote(spark: RunningSpark, topic: NewTopic) -> None:
    given = topic()
    rows = [[f"k{number}", f"v{number}", 1_700_000_000_123 + number, f"t{number}"] for number in range(5)]
    spark.ask("write", options=given, rows=[*rows, ["ключ", None, None, "t"]])
    found = spark.ask("read", options=given)
    assert found == [
        *([key, value, millis, {"trace": trace}] for key, value, millis, trace in rows),
        ["ключ", None, None, {"trace": "t"}],
    ]
    if spark.version < "4.1":
        with pytest.raises(SparkFailure, match=r"InvalidOption: option push_filters needs Spark 4\.1 or newer"):
            spark.ask("read", options={**given, "push_filters": "true"})


def test_a_stream_copies_each_row_once_over_a_split_and_a_restart(
    spark: RunningSpark, broker: RunningBroker, topic: NewTopic, tmp_path: Path
) -> None:
    """The restart finds a micro-batch that the sink has committed and Spark has not: it must not be there twice."""
    source, target, checkpoint = topic(), topic(), str(tmp_path / "checkpoint")
    given = {**source, "starting_position": "earliest"}
    sent = send(source, 0, 300)
    start = partial(spark.ask, "start_copying", source=given, target=target, checkpoint=checkpoint)
    start()
    spark.ask("process_all")
    assert copied(spark, target) == by_key(sent)
    Admin(broker.http_url).split_now(source["topic"], Admin(broker.http_url).active_segments(source["topic"])[0])
    sent += send(source, 300, 600)
    spark.ask("process_all")
    assert sum(spark.ask("stop")) == 600
    spark.ask("forget_last_commit", checkpoint=checkpoint)
    sent += send(source, 600, 700)
    start()
    spark.ask("process_all")
    spark.ask("stop")
    assert copied(spark, target) == by_key(sent)


def test_a_stream_keeps_its_limit_and_continues_where_it_stopped(
    spark: RunningSpark, topic: NewTopic, tmp_path: Path
) -> None:
    source, target = topic(), topic()
    given = {**source, "starting_position": "earliest", "max_rows_per_trigger": "100"}
    expected: list[str] = []
    for run in range(2):
        sent = send(source, run * 1000, run * 1000 + 250)
        expected += sent
        if spark.version < "4.2":
            # These versions stop such a query after one micro-batch.
            spark.ask("start_copying", source=given, target=target, checkpoint=str(tmp_path / "checkpoint"))
            spark.ask("process_all")
            batches = spark.ask("stop")
        else:
            job = {"source": given, "target": target, "checkpoint": str(tmp_path / "checkpoint")}
            batches = spark.ask("copy_available", **job)
        assert sum(batches) == 250
        assert max(batches) <= 100
    assert copied(spark, target) == by_key(expected)


def test_a_thread_writes_after_the_call_that_the_page_names(spark: RunningSpark, topic: NewTopic) -> None:
    """If a new Spark needs no such call, the table of errors in docs/spark.md has a line too many."""
    given = topic()
    with pytest.raises(SparkFailure, match=r"DATA_SOURCE_NOT_FOUND.*tidewire"):
        spark.ask("write_in_thread", options=given, is_prepared=False)
    spark.ask("write_in_thread", options=given, is_prepared=True)
    assert [row[:2] for row in spark.ask("read", options=given)] == [["k", "v"]]


AWAY: Final = {"service_url": "pulsar://127.0.0.1:1", "operation_timeout_seconds": "1"}
MISSING: Final = {"topic": "topic://public/default/missing"}
MISTAKES: Final[tuple[tuple[dict[str, str], str], ...]] = (
    ({"topik": "t"}, "errors.InvalidOption: unknown option 'topik'"),
    (MISSING, "there is no topic topic://public/default/missing"),
    (AWAY, "errors.ConnectFailed: no broker can be reached at pulsar://127.0.0.1:1"),
)
ROW: Final = ["k", "v", None, "t"]
SPARK_SAYS_CHARACTERS_MAX: Final = 450
"""Before the sentence: Spark's class of error, a query's two ids, and how often a task failed."""


def begins_with(sentence: str, job: Callable[[], object]) -> None:
    """Expect the job to fail with the sentence, without Python calls, and with the Java calls behind it, if at all."""
    with pytest.raises(SparkFailure) as failed:
        job()
    before, found, behind = str(failed.value).partition(sentence)
    assert found, f"the error does not say: {sentence}\n{before}"
    assert len(before) <= SPARK_SAYS_CHARACTERS_MAX, before
    assert "\tat " not in before
    assert "Traceback" not in before + behind


def test_errors_begin_with_their_sentence_when_a_batch_fails(spark: RunningSpark, topic: NewTopic) -> None:
    """In the processes that plan, and in the tasks that write and read."""
    given = topic()
    for mistake, sentence in MISTAKES:
        begins_with(sentence, partial(spark.ask, "read", options={**given, **mistake}))
        begins_with(sentence, partial(spark.ask, "write", options={**given, **mistake}, rows=[ROW]))
    large = ["k", "v" * 70_000, None, "t"]
    begins_with(
        "errors.UnwritableRow: the row with the key 'k' takes 70023 bytes as a message",
        partial(spark.ask, "write", options=given, rows=[large]),
    )
    begins_with(
        "errors.UnwritableColumns: column value is string, but must be a struct for schema=json",
        partial(spark.ask, "write", options={**given, "schema": "json"}, rows=[ROW]),
    )
    spark.ask("write_numbers", options={**given, "schema": "json"}, count=3)
    spark.ask("write", options=given, rows=[ROW])
    begins_with(
        f"errors.UnreadableMessage: segment{given['topic'].removeprefix('topic')}/",
        partial(spark.ask, "read_numbers", options={**given, "schema": "auto"}),
    )


def test_errors_begin_with_their_sentence_when_a_stream_fails(
    spark: RunningSpark, topic: NewTopic, tmp_path: Path
) -> None:
    """In the process that plans it, and in tasks."""
    source, target = {**topic(), "starting_position": "earliest"}, topic()
    spark.ask("write", options={name: source[name] for name in target}, rows=[ROW])

    def copy(checkpoint: str, reading: dict[str, str], writing: dict[str, str]) -> None:
        paths = {"checkpoint": str(tmp_path / checkpoint)}
        spark.ask("start_copying", source={**source, **reading}, target={**target, **writing}, **paths)
        spark.ask("process_all")

    for number, (mistake, sentence) in enumerate(MISTAKES):
        begins_with(sentence, partial(copy, f"source-{number}", mistake, {}))
        begins_with(sentence, partial(copy, f"sink-{number}", {}, mistake))
    unused = {"ending_position": "latest"}
    begins_with("errors.InvalidOption: option ending_position is not for a stream", partial(copy, "end", unused, {}))


def test_an_older_spark_gets_one_sentence(wheel: Path) -> None:
    """Beside it are the packages that Tidewire needs, so that nothing else is missing."""
    older = place(f"python:pyspark=={UNSUPPORTED}").parents[1] / SITE
    path = ":".join(map(str, (wheel, older)))
    importing = [sys.executable, "-c", "import tidewire.spark"]
    done = subprocess.run(importing, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "tidewire.spark.errors.UnsupportedSpark: tidewire needs PySpark 4.0 to 4.3, and this Python has PySpark 3.5.9; "
        "older Sparks can read and write topics with Spark's Kafka connector, at the broker's Kafka address"
    )
