"""Bad days for a cluster of real processes, drawn from a seed, and the judgement of what its clients saw.

`acts` draws a schedule (pure). `cluster` runs the processes and what lies between them. `performing` does to them what
the schedule says. `witnesses` are the clients. `story` puts all of it together (scripts/chaos.py, docs/chaos.md).
"""
