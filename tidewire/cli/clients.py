"""What commands share that use `tidewire.client`: they run an event loop and report its errors as one sentence.

The client retries what may pass, without a time limit. While it does, these commands say why, on standard error.

Commands import this module when they run, because it imports the client.
"""

import signal
import threading
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskStatus

import tidewire
from tidewire.cli.endings import CommandFailed, Interrupted, UsageError
from tidewire.cli.live import LiveLine
from tidewire.cli.logs import told
from tidewire.client.background import background_tasks
from tidewire.protocol.troubles import Trouble


def run_client(
    service_url: str, story: Callable[[tidewire.Client], Awaitable[None]], line: LiveLine | None = None
) -> None:
    """Connect to the broker at `service_url`, run `story` and disconnect. Meanwhile `tell_troubles` above `line`.

    Ctrl-C cancels `story`, so its producers, consumers and transactions end as at an error. A second Ctrl-C ends the
    process at once.

    Raises:
        UsageError: a name or an address is invalid.
        CommandFailed: the broker could not be reached, or it refused.
        Interrupted: Ctrl-C.
    """
    shown = LiveLine() if line is None else line

    async def connected() -> bool:
        async with background_tasks() as tasks:
            scope = anyio.CancelScope()
            if _may_hear_signals():
                await tasks.start(_cancel_at_interrupt, scope)
            with scope:
                async with tidewire.connect(service_url) as client:
                    tasks.start_soon(tell_troubles, client, shown)
                    await story(client)
        return scope.cancelled_caught

    try:
        is_interrupted = anyio.run(connected, backend="trio")
    except tidewire.InvalidName as error:
        raise UsageError(f"{error}.") from error
    except tidewire.ConnectFailed as error:
        raise CommandFailed(
            f"{str(error).rstrip('.')}. Check that a broker runs there, or name others with --service-url."
        ) from error
    except tidewire.TidewireError as error:
        raise CommandFailed(f"{str(error).rstrip('.')}.") from error
    except KeyboardInterrupt:
        is_interrupted = True
    if is_interrupted:
        raise Interrupted("interrupted.")


def _may_hear_signals() -> bool:
    # Python lets only the main thread set a handler.
    return threading.current_thread() is threading.main_thread()


async def _cancel_at_interrupt(scope: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            break
    scope.cancel()


async def tell_troubles(client: tidewire.Client, line: LiveLine) -> None:
    """Say on standard error why the client retries, when that begins, when the kind of reason changes, when it ends.

    A lost broker is usually first a lost connection, then a refused one. So a trouble may take two lines.
    """
    known: Trouble | None = None
    begun: Trouble | None = None
    while True:
        known = await client.troubles.change(known)
        if known is None:
            if begun is not None:
                line.say(told("info", "tidewire", f"going on after {anyio.current_time() - begun.since_seconds:.1f} s"))
            begun = None
        elif begun is None or type(known.error) is not type(begun.error):
            line.say(told("warning", "tidewire", f"waiting: {str(known.error).rstrip('.')}"))
            begun = known if begun is None else Trouble(known.error, begun.since_seconds)
