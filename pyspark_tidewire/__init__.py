"""Spark looks for data sources in modules of such a name, and so finds the format `tidewire` without registration."""

from tidewire.spark.source import TidewireSource as DefaultSource

__all__ = ["DefaultSource"]
