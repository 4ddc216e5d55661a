"""The options with which tests start Java: a compiler and a collector that start quickly.

A test's Java process lives for seconds or minutes. With the defaults it spends half of its time compiling code that
soon ends. One file of Spark tests took 34 s of CPU with the defaults, and takes 19 s with these options.
"""

from typing import Final

QUICK_JAVA: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options for `java`."""

QUICK_ENVIRONMENT: Final = {"JDK_JAVA_OPTIONS": " ".join(QUICK_JAVA)}
"""Environment variables for a program that starts `java` by itself, as one with Spark does."""

QUICK_SPARK: Final = ("spark.driver.extraJavaOptions", " ".join(QUICK_JAVA))
"""A setting for Spark and its value. It counts for the first session of a process, which starts the Java machine."""
