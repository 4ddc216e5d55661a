"""How a broker without a controller finds out, from the folder, who the controller is and whether it is gone.

| the newest fence                                     | what it means                                                |
|------------------------------------------------------|--------------------------------------------------------------|
| there is none                                        | CONTROLLER_GONE: the log is new, or of an earlier release    |
| names no address                                     | CONTROLLER_GONE: its maker was alone, and had the folder's   |
|                                                      | lock exclusively, which this process has shared now          |
| its maker had the controller's lock, and that is free| CONTROLLER_GONE: that process has ended                      |
| the beat stood still for the silence time            | BEAT_STOPPED: that process is stopped, or cannot run         |
| anything else                                        | the controller lives: ask it for a link                      |

A wrong answer costs an epoch, and nothing else: the fence alone keeps the log safe (`storage.metadata.epochs`).
"""

from pathlib import Path
from typing import NamedTuple

from storage.files import Files
from storage.metadata.cluster.beats import BeatWatch, read_beat
from storage.metadata.cluster.roles import RoleEvent
from storage.metadata.epochs import FoundEpoch, MetadataEpochs


class Look(NamedTuple):
    """What the folder says."""

    found: FoundEpoch | None
    """The newest fence."""
    has_ended: bool
    """Whether its maker has certainly ended."""
    beat: int | None
    """Its maker's beat."""

    def event(self, watch: BeatWatch, *, asked: float, now: float) -> RoleEvent | None:
        """Why this process may take over; None if the controller lives, as far as this look tells.

        The look began at `asked` and was complete at `now`. Pure, but for what `watch` keeps.
        """
        if self.found is None or self.found.address is None or self.has_ended:
            return RoleEvent.CONTROLLER_GONE
        stood_still = watch.saw(self.found.epoch, self.beat, asked=asked, now=now)
        return RoleEvent.BEAT_STOPPED if stood_still else None


def look(files: Files, directory: Path, epochs: MetadataEpochs) -> Look:
    """Look at the folder once. Blocks.

    Raises:
        CorruptMetadata: the newest fence is damaged.
    """
    found = epochs.newest()
    if found is None:
        return Look(None, False, None)
    return Look(found, epochs.has_ended(found), read_beat(files, directory, found.epoch))
