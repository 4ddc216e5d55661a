"""The library by which values in Avro are read and written.

It is imported when there are such values, so executors of other jobs, each of which has to be given its packages, can
do without.
"""

import sys
from types import ModuleType

from tidewire.spark.errors import LibraryMissing


def avro_library() -> ModuleType:
    """The package fastavro.

    Raises:
        LibraryMissing: it is not installed.
    """
    try:
        import fastavro
    except ImportError as error:
        raise LibraryMissing(
            f"values in Avro need the package fastavro, which {sys.executable} does not have"
        ) from error
    return fastavro
