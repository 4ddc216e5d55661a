"""How tests start Java: with the compiler and the collector that are quick to begin.

A test's Java machine lives for seconds or minutes. With its defaults it spends half of its time on compiling what is
soon over: one file of Spark tests took 34 s of CPU, and takes 19 s with these options.
"""

from typing import Final

QUICK_JAVA: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options for `java`."""

QUICK_SPARK: Final = ("spark.driver.extraJavaOptions", " ".join(QUICK_JAVA))
"""A setting for Spark and its value. It counts for the first session of a process, which starts the Java machine."""
