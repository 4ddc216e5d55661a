"""Errors that keep a broker from running, each as one message that tells the operator what to do."""

from broker.config import BrokerSettings
from broker.errors import StartError
from broker.metadata_setting import EMBEDDED
from storage.errors import DataFolderInUse, IdentityMismatch, JournalContended, JournalDamaged, LedgerFailed
from storage.files import AlreadyLocked, DiskFull
from storage.metadata.log import CorruptMetadata
from storage.metadata.store import MetadataError, StoreUnavailable


def operator_message(error: BaseException, settings: BrokerSettings) -> str | None:
    """The message for an error, or for the first error of a group; None if any of them is a defect of ours."""
    if isinstance(error, BaseExceptionGroup):
        found = [operator_message(inner, settings) for inner in error.exceptions]
        return None if None in found else found[0]
    match error:
        case StartError() | JournalDamaged() | IdentityMismatch() | JournalContended():
            return str(error)
        case CorruptMetadata():
            return f"{error}. Nothing was changed: restore the folder {error.path.parent} from a copy."
        case AlreadyLocked() | DataFolderInUse():
            return (
                f"The data folder {settings.data_dir} is in use by another broker with the id {settings.broker_id}: "
                "stop that one, or choose another --data-dir."
            )
        case StoreUnavailable() if settings.metadata != EMBEDDED:
            return f"Nothing can be decided without the metadata store: {error}. Check etcd and --metadata, restart."
        case MetadataError() if settings.metadata != EMBEDDED:
            return f"The metadata in {settings.metadata} cannot be used: {error}. Nothing was changed."
        case StoreUnavailable():
            return f"The metadata log cannot be written, so nothing can be decided: {error}. Check the disk, restart."
        case DiskFull():
            return (
                f"The disk of {settings.data_dir} is full: {error.filename} cannot be made or grow. "
                "Free space, and start the broker again."
            )
        case LedgerFailed():
            return f"The journal cannot be written, so nothing more can be promised: {error}. Check the disk, restart."
        case PermissionError():
            return f"{error.filename}: permission denied. Choose a --data-dir that this user may write to."
        case OSError():
            return f"{error.filename or settings.data_dir}: {error.strerror or error}. Check the disk and --data-dir."
        case _:
            return None
