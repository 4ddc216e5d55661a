"""Departures and their delays, by origin and hour, with the weather of that hour: windows, and a join.

The weather is joined as a static table, not as a second stream. It is one small file that exists before the job starts,
and Spark sends it to every task. Nothing in it comes late, so the join needs no state and no watermark. The join comes
after the aggregation, where there are only a few rows for each hour. If your reference data changes while the job runs,
read it from a topic, give it a watermark with `withWatermark`, and join on the window.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from .watermark import WATERMARK_DELAY

LATE_MINUTES = 15

COLUMNS = """
    origin STRING, hour TIMESTAMP, departures LONG, delay_minutes LONG, late LONG,
    observed BOOLEAN, temp DOUBLE, wind_speed DOUBLE, precip DOUBLE, visib DOUBLE
"""
"""The columns of the result. It has one row for each origin and hour with departures."""

_WEATHER_FILE = """
    origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE, wind_dir DOUBLE,
    wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE, time_hour TIMESTAMP
"""


def departures(events: DataFrame) -> DataFrame:
    """Count the departures of each hour. A window is emitted once, when the watermark has passed it."""
    is_departure = f.col("kind") == "departed"
    return (
        events.withWatermark("event_time", WATERMARK_DELAY)
        # Ticks must reach the watermark. They open windows without departures, which the last filter removes.
        .where(f.col("kind").isin("departed", "tick"))
        .groupBy("origin", f.window("event_time", "1 hour"))
        .agg(
            f.count_if(is_departure).alias("departures"),
            f.sum("delay").alias("delay_minutes"),
            f.count_if(is_departure & (f.col("delay") > LATE_MINUTES)).alias("late"),
        )
        .where("departures > 0")
        .select("origin", f.col("window.start").alias("hour"), "departures", "delay_minutes", "late")
    )


def read_weather(spark: SparkSession, path: Path) -> DataFrame:
    """Read the observations at each origin and hour."""
    weather = spark.read.csv(str(path), header=True, schema=_WEATHER_FILE, nullValue="NA")
    columns = ("temp", "wind_speed", "precip", "visib")
    return weather.select("origin", f.col("time_hour").alias("hour"), f.lit(True).alias("observed"), *columns)


def with_weather(departures: DataFrame, weather: DataFrame) -> DataFrame:
    """Join each window with its hour's weather. For some hours there is no observation."""
    return departures.join(weather, ["origin", "hour"], "left").fillna({"observed": False})
