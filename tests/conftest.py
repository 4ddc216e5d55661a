"""Hypothesis profiles for every test.

`check` (the default) is the same on each run, so that a red test is always the change's doing; `thorough` looks at new
and many more examples each time and prints how to reproduce what it found. Deadlines are off: the machine's speed is
no property of the code.
"""

from hypothesis import settings

settings.register_profile("check", max_examples=100, derandomize=True, deadline=None, database=None)
settings.register_profile("thorough", max_examples=3_000, deadline=None, print_blob=True)
settings.load_profile("check")
