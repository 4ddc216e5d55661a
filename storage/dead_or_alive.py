"""Whether a broker's process has ended, as far as the operating system knows.

A broker holds the lock of its place from before its registration until its end. Whoever gets that lock knows that the
process has ended. A held lock proves nothing: a stopped process keeps it, and another prober may hold it for a moment.
This only shortens waiting. The fence is what makes a take-over safe (`storage.fence`).
"""

from enum import Enum, auto
from pathlib import Path

from storage.broker_home import lock_path
from storage.files import Files


class Liveness(Enum):
    """What is known of a process."""

    DEAD = auto()
    UNKNOWN = auto()


async def probe(files: Files, data_dir: Path, broker_id: str, lock_name: str | None) -> Liveness:
    """Try the lock that the broker held under this name (`BrokerHome.lock_name`), and release it at once.

    Another name means another file, for example in a copied folder, or an earlier boot. That proves nothing either.
    """
    return await files.run(_probe, files, lock_path(data_dir, broker_id), lock_name)


def _probe(files: Files, path: Path, lock_name: str | None) -> Liveness:
    if lock_name is None or not files.exists(path.parent):
        return Liveness.UNKNOWN
    try:
        lock = files.lock(path)
    except OSError:
        # Somebody holds it, or it cannot be tried.
        return Liveness.UNKNOWN
    try:
        return Liveness.DEAD if lock.name == lock_name else Liveness.UNKNOWN
    finally:
        lock.close()
