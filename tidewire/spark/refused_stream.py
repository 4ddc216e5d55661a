"""A stream whose options are wrong: it answers Spark's first question with the reason.

Spark 4.0 to 4.3 create a stream's reader and stop it in one block. If the creation raises, Spark stops a reader that
does not exist, and reports that instead. An error of a question reaches the user unchanged.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tidewire.protocol.errors import fresh
from tidewire.spark.errors import InvalidOption
from tidewire.spark.one_sentence import one_sentence


class RefusedStream(DataSourceStreamReader):
    """See the module's docstring. A new query asks for the first offset, another for the newest or for partitions."""

    def __init__(self, reason: InvalidOption) -> None:
        """Keep the reason."""
        self._reason = reason

    @one_sentence()
    def _refuse(self) -> NoReturn:
        raise fresh(self._reason)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - these names are Spark's
        """Raise the reason."""
        self._refuse()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - the signature of all versions
        """Raise the reason."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the reason."""
        self._refuse()

    def read(self, partition: InputPartition) -> NoReturn:
        """Raise the reason; Spark never gets here, because there are no partitions."""
        self._refuse()

    def stop(self) -> None:
        """Nothing to close."""
