"""A copier's process: it reads a topic in a group, and writes each record's copy to another topic, exactly once.

    python -m tests.support.kafka_copiers.program ORDERS

ORDERS is an `Orders` in JSON. It copies until SIGTERM, and then ends with status 0. A process that was stopped for a
while, and has an heir, ends with FENCED or REPLACED.
"""

import sys
from random import Random
from typing import Final

from tests.support.kafka_copiers.orders import Fenced, Orders, Replaced, Stopping
from tests.support.kafka_copiers.steps import Steps

FENCED: Final = 3
"""The exit status of a process whose transactional id has another owner."""
REPLACED: Final = 4
"""The exit status of a process whose instance id has another owner."""


def main() -> int:
    """Copy until SIGTERM, or until another process has its name. Return the exit status."""
    orders = Orders.loads(sys.argv[1])
    steps = Steps(orders.death, Random(orders.seed))
    stopping = Stopping()
    try:
        if orders.client == "confluent":
            from tests.support.kafka_copiers.confluent import copy
        else:
            assert orders.client == "aiokafka", orders.client
            from tests.support.kafka_copiers.aio import copy
        copy(orders, steps, stopping)
    except Fenced as fenced:
        print(f"fenced: {fenced}", file=sys.stderr)
        return FENCED
    except Replaced as replaced:
        print(f"replaced: {replaced}", file=sys.stderr)
        return REPLACED
    return 0


if __name__ == "__main__":
    sys.exit(main())
