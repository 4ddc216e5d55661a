"""Shows users Tidewire's errors as one sentence, without the Python calls that led to them.

A Python process that Spark started sends an error to the JVM as text, and ends. The text contains the calls by default.
Spark's setting `spark.sql.execution.pyspark.udf.hideTraceback.enabled` leaves them out, but the processes that plan
streams and writes do not know it. They all look at an environment variable while they write the text. So this module
sets the variable when one of Tidewire's own errors leaves a method that Spark calls. All other errors keep their calls,
because those are mistakes in Tidewire or elsewhere, and the calls help to find them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidewire.protocol.errors import TidewireError

HIDE_CALLS: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark 4.0 to 4.3 read it (`pyspark.util.handle_worker_exception`)."""


@contextmanager
def one_sentence() -> Iterator[None]:
    """Around what Spark calls, also as the decorator of a method. A generator needs it inside its body."""
    try:
        yield
    except TidewireError:
        os.environ[HIDE_CALLS] = "1"
        raise
