"""What the base of all errors promises: policy depends on the class, and a copy keeps everything."""

import ast
import gc
import importlib
import pkgutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import broker
import dispatch
import storage
import tidewire
import txn
from broker.cluster.ownership import OwnedElsewhere
from broker.errors import TopicClosed, TopicDamaged, TopicNotFound
from dispatch.errors import AcknowledgementRefused, SubscriptionClosed
from storage.cursor import CursorClosed, CursorDeleted, CursorFailed, CursorLost, CursorRefused
from storage.errors import (
    CursorCorrupt,
    ExpectedError,
    Fenced,
    JournalContended,
    JournalMissing,
    LedgerCorrupt,
    LedgerFailed,
    LedgerNotMade,
    LedgerOutOfReach,
    NoSpace,
    WriterAlive,
    fresh,
)
from storage.files import DiskFull
from storage.metadata.store import ChangeSetTooLarge, Conflict, StoreFull, StoreUnavailable
from txn.errors import OutcomeUnknown, OwnershipLost, PendingAcksDiscarded, TransactionConflict

RAISED_ONCE: Final = {
    # A change that failed by a defect: its log needs the traceback.
    "broker.controller: change.error",
    # They end the task that follows etcd, or that commits to the embedded store.
    "storage.reign: self._snapshots.failure",
    "storage.follower: self._reversed",
    "storage.rpc: inbox.failure",
}
"""Kept errors that are raised themselves: room, module, expression."""

NOT_OF_THE_ROOT: Final = {
    # Bytes or records that cannot be read. Who reads them raises an error of the root, or passes them over.
    "ClaimUnreadable",
    "ContradictedOutcome",
    "CorruptEntry",
    "CorruptIndex",
    "DamagedHidden",
    "CorruptRecord",
    "DamagedBlock",
    "DamagedSector",
    "RecordUnreadable",
    "RowsDamaged",
    "SnapshotDamaged",
    "StaleIndex",
    "Undecodable",
    "UnknownIndexVersion",
    "UnknownSnapshotVersion",
    "_OtherCount",
    # `storage.files` raises what the operating system does.
    "AlreadyLocked",
    "DiskFull",
    "PeerGone",
    # They end a command that restores a backup.
    "BackupDamaged",
    "FolderNotEmpty",
    # Caught in the folder that raises them.
    "AmbiguousRequest",
    "ConnectionEnds",
    "CursorMoved",
    "RecordChanged",
    "RpcError",
    "StoreRolledBack",
    "TopicsChanged",
    "_TooManyPairs",
}


def _exceptions(base: type[BaseException]) -> Iterator[type[BaseException]]:
    for error in base.__subclasses__():
        yield error
        yield from _exceptions(error)


def test_what_a_room_promises_to_raise_has_the_root() -> None:
    """Background work and front ends catch the base; any other error would count as a defect."""
    rooms = (broker, dispatch, storage, txn)
    for room in rooms:
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            importlib.import_module(module.name)
    ours = {error for error in _exceptions(Exception) if error.__module__.startswith(tuple(r.__name__ for r in rooms))}
    assert {error.__name__ for error in ours if not issubclass(error, ExpectedError)} == NOT_OF_THE_ROOT


@pytest.mark.parametrize(
    ("error", "retriable", "definite"),
    [
        (StoreUnavailable, True, False),
        (StoreFull, True, True),
        (Conflict, False, True),
        (ChangeSetTooLarge, False, True),
        (NoSpace, True, True),
        (LedgerNotMade, True, True),
        (LedgerOutOfReach, True, True),
        (WriterAlive, True, True),
        (JournalContended, True, True),
        (Fenced, True, False),
        (LedgerFailed, False, False),
        (LedgerCorrupt, False, True),
        (JournalMissing, False, True),
        (CursorCorrupt, False, True),
        (CursorLost, True, True),
        (CursorFailed, True, False),
        (CursorClosed, True, False),
        (CursorRefused, False, True),
        (CursorDeleted, False, True),
        (OwnershipLost, True, True),
        (OutcomeUnknown, True, False),
        (PendingAcksDiscarded, True, True),
        (TransactionConflict, False, True),
        (SubscriptionClosed, True, True),
        (AcknowledgementRefused, False, True),
        (TopicClosed, True, True),
        (OwnedElsewhere, True, True),
        (TopicDamaged, False, True),
        (TopicNotFound, False, True),
    ],
)
def test_the_class_says_what_may_pass_and_what_was_done(
    error: type[ExpectedError], retriable: bool, definite: bool
) -> None:
    """E11, E13: full disks, running writers and lost claims are transient, damage is not; no answer means unknown."""
    assert (error.retriable, error.definite) == (retriable, definite)


def test_a_copy_says_the_same_and_keeps_no_frame() -> None:
    """An error that is kept and raised several times does not grow, and does not hold its callers."""
    kept = TopicClosed("t is closed", retriable=False)
    kept.__cause__ = LedgerCorrupt(Path("/l"), 7, "a flipped bit")

    class Caller:
        def meet(self) -> None:
            raise fresh(kept)

    caller = Caller()
    gone = weakref.ref(caller)
    with pytest.raises(TopicClosed, match="t is closed") as told:
        caller.meet()
    assert (told.value.retriable, told.value.__cause__) == (False, kept.__cause__)
    assert kept.__traceback__ is None
    del caller, told
    gc.collect()
    assert gone() is None


def test_a_copy_needs_no_constructor() -> None:
    """Errors with their own constructors are copied, too."""
    damage = LedgerCorrupt(Path("/l"), 7, "a flipped bit", next_entry=3)
    copied = fresh(damage)
    assert (str(copied), copied.path, copied.next_entry) == (str(damage), damage.path, 3)


@pytest.mark.parametrize("kept", [LedgerFailed("the disk failed"), DiskFull(28, "No space left on device", "/l")])
def test_raising_a_kept_error_again_adds_no_frames(kept: LedgerFailed | DiskFull) -> None:
    """The tenth caller's traceback is as long as the first one's, and the kept error has none."""
    lengths = set()
    for _ in range(10):
        with pytest.raises(type(kept)) as told:
            raise fresh(kept)
        assert (str(told.value), told.value.__dict__) == (str(kept), kept.__dict__)
        lengths.add(len(told.traceback))
    assert lengths == {1}
    assert kept.__traceback__ is None


def test_no_object_raises_the_error_that_it_keeps() -> None:
    """It raises a fresh copy. Exceptions to the rule go to one task, once, with their original traceback."""
    found = set()
    for room in (broker, dispatch, storage, txn, tidewire):
        for file in Path(room.__path__[0]).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Attribute) and node.exc.attr.islower():
                    found.add(f"{room.__name__}.{file.stem}: {ast.unparse(node.exc)}")
    assert found == RAISED_ONCE
