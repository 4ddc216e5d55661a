"""The sink keeps the largest message of a broker in a separate process, which accepts less than others."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pytest

from tests.support.admin import Admin
from tests.support.processes import RunningBroker, running_broker
from tests.tidewire.spark.test_writing import stored, task
from tidewire.spark.encoding import Columns, encode
from tidewire.spark.errors import UnwritableRow

LIMIT: Final = 64 * 1024


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("broker") / "data", "--message-bytes-max", f"{LIMIT}B") as broker:
        yield broker


def row(size_bytes: int, keys: pa.Array | None = None) -> Columns:
    """Make a row that takes this many bytes as a message. Spaces around its number fill it."""
    beside = encode(Columns(pa.array([bytes(size_bytes)]), keys)).size_bytes - size_bytes
    return Columns(pa.array([b"7".ljust(size_bytes - beside)]), keys)


def test_a_batch_is_cut_at_the_limit(small: RunningBroker) -> None:
    """Many times the limit, in rows that do not divide it."""
    topic = Admin(small.http_url).new_topic(1)
    with task(small) as one:
        values = [(b"%d" % number).ljust(10_000) for number in range(100)]
        one.attempt.write(topic, encode(Columns(pa.array(values), pa.array(["k"] * 100))))
        one.commit()
    (found,) = stored(small, topic).values()
    assert found == list(range(100))


def test_the_largest_row_is_written(small: RunningBroker) -> None:
    topic = Admin(small.http_url).new_topic(1)
    with task(small) as one:
        one.attempt.write(topic, encode(Columns(pa.array([b"1"]), pa.array(["small"]))))
        one.attempt.write(topic, encode(row(LIMIT, pa.array(["large"]))))
        one.commit()
    assert {key: values for (_, key), values in stored(small, topic).items()} == {"small": [1], "large": [7]}


@pytest.mark.parametrize(
    ("keys", "named"), [(None, "a row without a key"), (pa.array(["large"]), "the row with the key 'large'")]
)
def test_a_larger_row_is_refused_by_name(small: RunningBroker, keys: pa.Array | None, named: str) -> None:
    topic = Admin(small.http_url).new_topic(1)
    with task(small) as one:
        one.attempt.write(topic, encode(Columns(pa.array([b"1"]), pa.array(["small"]))))
        one.attempt.write(topic, encode(row(LIMIT + 1, keys)))
        with pytest.raises(UnwritableRow) as refused:
            one.attempt.finish()
    assert str(refused.value) == (
        f"{named} takes {LIMIT + 1} bytes as a message, and the broker at {small.service_url} accepts at most {LIMIT}; "
        "write smaller rows, or raise the broker's setting message_bytes_max"
    )
