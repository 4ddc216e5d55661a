"""Runs a test under many orders of the scheduler, because a program must work under every order that Trio can choose.

    @every_schedule()
    async def test_two_writers() -> None: ...

    @every_schedule(steps=st.lists(...))
    async def test_steps(steps: list[Step]) -> None: ...

Trio registers its scheduler's random numbers with Hypothesis. Under `@given` alone, every example starts with the same
seed, so the order is repeatable but always the same. Drawing `random_module` gives each example its own seed.
Hypothesis reports that seed and repeats it when a test fails.
"""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples

Test = TypeVar("Test", bound=Callable[..., object])


def every_schedule(*, examples_max: int = 60, **arguments: st.SearchStrategy[object]) -> Callable[[Test], Test]:
    """Decorate an async test to run it `examples_max` times, each with drawn arguments and its own task order.

    Under the profile `thorough`, it runs more often, in proportion (`examples.py`).
    """

    def decorate(test: Test) -> Test:
        async def under_a_schedule(schedule_seed: object, **others: object) -> None:
            del schedule_seed  # Drawing it has seeded the scheduler.
            await test(**others)  # type: ignore[misc]

        # Pytest looks here for what the test is to be given beside the drawn arguments.
        own = signature(test)
        seed = Parameter("schedule_seed", Parameter.KEYWORD_ONLY)
        under_a_schedule.__signature__ = own.replace(parameters=[*own.parameters.values(), seed])  # type: ignore[attr-defined]
        under_a_schedule.__name__ = test.__name__
        under_a_schedule.__doc__ = test.__doc__
        under_a_schedule.__module__ = test.__module__
        configured = settings(
            max_examples=examples(examples_max),
            deadline=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture],
        )
        return configured(given(schedule_seed=st.random_module(), **arguments)(under_a_schedule))  # type: ignore[return-value]

    return decorate
