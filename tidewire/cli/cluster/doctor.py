"""`tidewire cluster doctor`: says who owns what, what nobody owns and why, and what is wrong.

A broker examines the cluster. If none answers, this command examines the data folder by itself.
"""

import json
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import typer

from tidewire.cli.asking import NotAccepted, NotAnswered
from tidewire.cli.broker_http import BrokerHttp
from tidewire.cli.endings import CommandFailed

PATH: Final = "/admin/v2/cluster/doctor"
EXAMINE_SECONDS_MAX: Final = 30.0
"""How long a broker may take. If it is stopped, the next one is asked after that."""
WIDTH: Final = 100
"""Characters in a line of the text."""


def examined(addresses: Sequence[str], data_dir: Path | None) -> dict[str, Any]:
    """Return what the doctor says, as `broker.doctor.report` has it.

    Args:
        addresses: the HTTP addresses of brokers, which are asked in turn. There may be none if there is a folder.
        data_dir: examined if none of them answers; None if the user named an address.

    Raises:
        CommandFailed: no broker answers, and the folder cannot be examined, or does not answer either.
    """
    unanswered: CommandFailed | None = None
    refused: NotAccepted | None = None
    for address in addresses:
        try:
            (line,) = BrokerHttp(address, answer_seconds_max=EXAMINE_SECONDS_MAX).lines(PATH, {})
        except NotAnswered as failure:
            unanswered = failure
        except NotAccepted as failure:
            # A broker without a metadata session refuses everything. Another one may have its session.
            refused = failure
        else:
            return dict(json.loads(line))
    if refused is not None:
        raise refused
    if data_dir is None:
        assert unanswered is not None, "somebody was asked"
        raise unanswered
    nobody = (
        f"None of the brokers at {', '.join(addresses)} answers."
        if addresses
        else f"No cluster was started in {data_dir}."
    )
    typer.echo(f"{nobody} The folder {data_dir} is examined.", err=True)
    from tidewire.cli.daemon import make_importable

    make_importable()
    from tidewire.cli.cluster.silent_disk import SilentDisk
    from tidewire.cli.cluster.stopped import examine_stopped

    disk = SilentDisk()
    return disk.run(lambda: examine_stopped(data_dir, lambda sentence: typer.echo(sentence, err=True), disk))


def text_of(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the report for people."""
    for broker in report["brokers"]:
        owns = ", ".join(f"{kind} {count}" for kind, count in broker["owns"].items()) or "nothing"
        yield f"{broker['broker']}: {broker['state']}, owns {owns}{_metadata(broker)}"
    for reason, count in report["unowned"].items():
        yield f"unowned: {count}, {reason}"
    for what in report["notLooked"]:
        yield f"not looked at: {what}"
    for number, finding in enumerate(report["findings"], 1):
        yield ""
        yield f"{number}. {finding['kind']}: {finding['about']}"
        yield from textwrap.wrap(finding["what"], WIDTH, initial_indent="   ", subsequent_indent="   ")
        yield from textwrap.wrap(finding["advice"], WIDTH, initial_indent="   -> ", subsequent_indent="      ")
    if report["more"]:
        yield ""
        yield f"and {report['more']} more findings"
    if not report["findings"]:
        yield "well: nothing found"


def _metadata(broker: dict[str, Any]) -> str:
    """Say which metadata a broker holds, and what it does for it."""
    if broker["revision"] is None:
        return ""
    store, revision = broker["store"], f"revision {broker['revision']}"
    if "leads" not in store:
        return f"; metadata at {revision}"
    return f"; {'leads' if store['leads'] else 'follows'} metadata epoch {store['epoch']:.0f} at {revision}"
