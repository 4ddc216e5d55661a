"""A broker for the test suites of applications: a pytest plugin, without Docker and without a JVM.

    pip install 'tidewire[testing]'

    async def test_orders(tidewire_broker, tidewire_topic):
        await run_my_application(tidewire_broker.kafka, tidewire_topic)

The plugin is loaded by its entry point. `plugin` has the fixtures, and `TidewireBroker` is what `tidewire_broker`
gives. The broker is a process of its own, started as `tidewire broker` is. This package never imports its code.

pytest imports this package in every run, so the names here are imported when first used.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidewire.testing.broker import TidewireBroker
    from tidewire.testing.process import BrokerFailed

_HOMES: Final = {"BrokerFailed": "process", "TidewireBroker": "broker"}

__all__ = ["BrokerFailed", "TidewireBroker"]


def __getattr__(name: str) -> object:
    """Import the module that a public name lives in, when the name is first used."""
    from importlib import import_module

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
