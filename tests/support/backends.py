"""Runs one story under asyncio and under Trio, because the client supports both.

    @on_both_backends
    async def test_something() -> None: ...

    @on_trio                          # the clock jumps when all tasks wait
    async def test_a_timeout() -> None: ...

Both make synchronous test functions, which run the story with `anyio.run`. An asynchronous test would always be run by
the suite's own Trio runner.
"""

import inspect
from collections.abc import Awaitable, Callable

import anyio
import pytest
from trio.testing import MockClock

Story = Callable[..., Awaitable[None]]


def on_backends(*backends: str) -> Callable[[Story], Callable[..., None]]:
    """Make a test that runs the story once under each backend. Fixtures and parameters are passed on."""

    def decorate(story: Story) -> Callable[..., None]:
        def test(backend: str, **arguments: object) -> None:
            async def run() -> None:
                await story(**arguments)

            anyio.run(run, backend=backend)

        return _named(pytest.mark.parametrize("backend", backends)(test), story, "backend")

    return decorate


on_both_backends = on_backends("asyncio", "trio")
"""For a story that shows what the client promises; a costly one may run under one backend, which differs in turn."""


def on_trio(story: Story) -> Callable[..., None]:
    """Make a test that runs the story under Trio, with a clock that jumps to the next deadline when all tasks wait."""

    def test(**arguments: object) -> None:
        async def run() -> None:
            await story(**arguments)

        anyio.run(run, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})

    return _named(test, story)


def _named(test: Callable[..., None], story: Story, *added: str) -> Callable[..., None]:
    test.__name__ = story.__name__
    test.__doc__ = story.__doc__
    test.__module__ = story.__module__
    parameters = [
        *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in added),
        *(
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(story).parameters.values()
        ),
    ]
    test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return test
