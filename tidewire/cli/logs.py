"""`--log-level` and `--log-format` of every command: what the client library logs, and the form of what is told.

A broker has its own log (broker.py), with the same flags. Here, `--log-format json` makes every line on standard error
one JSON object with the keys of the broker's log: errors, and why the command waits. What a command prints as its
result is on standard output and stays as it is.
"""

import functools
import inspect
import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

_ROOM: Final = "tidewire"
"""The logger above all of this package."""


class LogFormat(StrEnum):
    """How lines on standard error are written."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


FormatOption = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        envvar="TIDEWIRE_LOG_FORMAT",
        show_envvar=False,
        help="How to write what goes to standard error (default: text). json: one object a line.",
    ),
]
LevelOption = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level", envvar="TIDEWIRE_LOG_LEVEL", show_envvar=False, help="The least level to log (default: warning)."
    ),
]


class _Lines(logging.Handler):
    """Writes log records to standard error as it is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        sys.stderr.write(f"{self.format(record)}\n")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One JSON object, with the exception's traceback if there is one."""
        further = {"logger": record.name}
        if record.exc_info:
            further["exception"] = self.formatException(record.exc_info)
        return _object(record.levelname.lower(), record.getMessage(), **further)


class _Told:
    """The form of what commands tell, for this process."""

    is_json = False


def configure(log_format: LogFormat | None, log_level: LogLevel | None) -> None:
    """Log as these two say. None leaves it as Python has it: warnings, as plain text."""
    logger = logging.getLogger(_ROOM)
    for handler in [known for known in logger.handlers if isinstance(known, _Lines)]:
        logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    _Told.is_json = log_format is LogFormat.JSON
    if log_format is None and log_level is None:
        return
    handler = _Lines()
    handler.setFormatter(
        _JsonLines() if _Told.is_json else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logger.addHandler(handler)
    logger.setLevel((log_level or LogLevel.WARNING).upper())


def told(level: str, command: str, text: str) -> str:
    """The line that tells this: `COMMAND: TEXT`, or one JSON object."""
    return _object(level, text, command=command) if _Told.is_json else f"{command}: {text}"


def _object(level: str, event: str, **further: str) -> str:
    return json.dumps({"timestamp": datetime.now(UTC).isoformat(), "level": level, "event": event, **further})


def give_log_options(app: typer.Typer) -> None:
    """Give every command below `app` the two options, unless it has them."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _with_log_options(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            give_log_options(group.typer_instance)


def _with_log_options(callback: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(callback)
    if "log_level" in signature.parameters:
        return callback

    @functools.wraps(callback)
    def logged(
        *arguments: object, log_format: LogFormat | None = None, log_level: LogLevel | None = None, **options: object
    ) -> object:
        configure(log_format, log_level)
        return callback(*arguments, **options)

    given = {"log_format": FormatOption, "log_level": LevelOption}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in given.items()
    ]
    # Typer reads a command's options from these two.
    logged.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    logged.__annotations__ = {**callback.__annotations__, **given}
    return logged
