"""The library that reads and writes Avro values.

It is imported only when there are such values. So executors of other jobs need not have it installed.
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
