"""`tidewire topics retention`: how long a topic keeps messages once every subscription has acknowledged them.

What it shares with `tidewire namespaces retention` is here, too.
"""

import re
from typing import Annotated, Any, Final

import typer

from tidewire.cli.asking import Brokers
from tidewire.cli.cluster.addresses import DATA_DIR_DEFAULT, DataDir, Http, addresses
from tidewire.cli.endings import UsageError, one_sentence
from tidewire.cli.output import Json, print_json
from tidewire.cli.topic_paths import topic_path

COMMAND: Final = "tidewire topics"
INFINITE: Final = "infinite"
_NO_LIMIT: Final = -1
_MINUTES: Final = {"m": 1, "h": 60, "d": 24 * 60, "w": 7 * 24 * 60}
_MEGABYTES: Final = {"M": 1, "G": 1024, "T": 1024 * 1024}
_AMOUNT: Final = re.compile(r"([0-9]{1,9})([a-zA-Z]?)")

Time = Annotated[
    str | None, typer.Option("--time", metavar="TIME", help="Keep messages this long: 30m, 12h, 7d, 0 or infinite.")
]
Size = Annotated[str | None, typer.Option("--size", metavar="SIZE", help="Keep this much: 500M, 10G, 0 or infinite.")]
Remove = Annotated[bool, typer.Option("--remove", help="Remove this policy. The next wider one applies then.")]


def command(
    topic: Annotated[str, typer.Argument(help="topic://... or persistent://TENANT/NAMESPACE/NAME", show_default=False)],
    time: Time = None,
    size: Size = None,
    remove: Remove = False,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Show how long a topic keeps acknowledged messages, or change it by --time, --size or --remove.

    It applies to each segment or partition. Without a policy, everything is kept. What a subscription has not
    acknowledged is always kept. If only one of --time and --size is given, the other one is infinite.
    """
    with one_sentence(COMMAND):
        resource = topic_path(topic).root + "/retention"
        brokers = Brokers(*addresses(data_dir, http))
        own = change_of(brokers, resource, time, size, remove=remove)
        applied = own or brokers.ask("GET", resource, [("applied", "true")])
        if as_json:
            minutes, megabytes = applied["retentionTimeInMinutes"], applied["retentionSizeInMB"]
            print_json({"topic": topic, "minutes": minutes, "megabytes": megabytes, "isOwn": own is not None})
        else:
            typer.echo(f"{topic} {sentence(applied)}{'' if own else ' (not its own policy)'}")


def change_of(
    brokers: Brokers, resource: str, time: str | None, size: str | None, *, remove: bool
) -> dict[str, Any] | None:
    """Change a policy as the options say, if any is given. Return the policy that is there then, in the API's JSON.

    Raises:
        UsageError: the options contradict each other, or one is no such amount.
        NotAnswered: no broker answered.
        NotAccepted: the broker refused.
    """
    if remove and (time is not None or size is not None):
        raise UsageError("Give either --remove, or --time and --size.")
    wanted = policy_of(time, size)
    if remove:
        brokers.ask("DELETE", resource)
    elif wanted is not None:
        brokers.ask("POST", resource, body=wanted)
    found: dict[str, Any] | None = brokers.ask("GET", resource)
    return found


def policy_of(time: str | None, size: str | None) -> dict[str, int] | None:
    """Return the policy in the HTTP API's JSON; None if neither is given.

    Raises:
        UsageError: one of them is no such amount.
    """
    if time is None and size is None:
        return None
    minutes = _amount(time, "--time", _MINUTES, "30m, 12h, 7d, 0 or infinite")
    megabytes = _amount(size, "--size", _MEGABYTES, "500M, 10G, 0 or infinite")
    if time == "0" and size is None:
        megabytes = 0
    if size == "0" and time is None:
        minutes = 0
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


def sentence(policy: dict[str, Any]) -> str:
    """Return what a policy keeps."""
    minutes, megabytes = policy["retentionTimeInMinutes"], policy["retentionSizeInMB"]
    if minutes == megabytes == _NO_LIMIT:
        return "keeps everything"
    if minutes == megabytes == 0:
        return "keeps nothing that is acknowledged"
    limits = [] if minutes == _NO_LIMIT else [f"for {minutes:,} minutes"]
    limits += [] if megabytes == _NO_LIMIT else [f"up to {megabytes:,} MiB"]
    return f"keeps what is acknowledged {' and '.join(limits)}"


def _amount(text: str | None, flag: str, units: dict[str, int], example: str) -> int:
    if text is None or text == INFINITE:
        return _NO_LIMIT
    found = _AMOUNT.fullmatch(text)
    if found is None or (found[2] not in units and text != "0"):
        raise UsageError(f"{flag} {text!r} is no amount. Write it like {example}.")
    return int(found[1]) * units.get(found[2], 1)
