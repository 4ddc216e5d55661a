"""Errors that keep a broker from running, each as one message that tells the operator what to do."""

from broker.config import BrokerSettings
from broker.errors import StartError
from broker.metadata_setting import EMBEDDED
from storage.errors import DataFolderInUse, Fenced, IdentityMismatch, JournalContended, JournalDamaged, LedgerFailed
from storage.file_systems import NetworkFileSystem
from storage.files import AlreadyLocked, DiskFull
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.store import MetadataError, SessionLost, StoreUnavailable


def operator_message(error: BaseException, settings: BrokerSettings) -> str | None:
    """Return the message for an error, or for the first error of a group; None if any of them is a bug."""
    if isinstance(error, BaseExceptionGroup):
        found = [operator_message(inner, settings) for inner in error.exceptions]
        return None if None in found else found[0]
    match error:
        case StartError() | JournalDamaged() | IdentityMismatch() | JournalContended():
            return str(error)
        case NetworkFileSystem():
            return f"{error}."
        case CorruptMetadata():
            return f"{error}. Nothing was changed. Restore the folder {error.path.parent} from a backup."
        case DataFolderInUse():
            return (
                f"A broker with the id {settings.broker_id} already uses the data folder {settings.data_dir}. "
                "Stop that broker, or choose another --data-dir."
            )
        case AlreadyLocked():
            joining = (
                " To run several brokers on it, start each with --internal HOST:PORT."
                if settings.metadata == EMBEDDED and settings.internal is None
                else ""
            )
            return (
                f"Another process already uses the data folder {settings.data_dir}. "
                f"Stop that process, or choose another --data-dir.{joining}"
            )
        case StoreUnavailable() if settings.metadata != EMBEDDED:
            return f"The metadata store is not available: {error}. Check etcd and --metadata, then restart the broker."
        case MetadataError() if settings.metadata != EMBEDDED:
            return f"The metadata in {settings.metadata} cannot be used: {error}. Nothing was changed."
        case StoreUnavailable() | SessionLost() if settings.internal is not None:
            return (
                f"The cluster's metadata cannot be used: {error}. Check the other brokers and the disk, then start "
                "this broker again."
            )
        case StoreUnavailable():
            return f"The metadata log cannot be written: {error}. Check the disk, then restart the broker."
        case DiskFull():
            return (
                f"The disk of {settings.data_dir} is full: {error.filename} cannot be created or extended. "
                "Free some space, then restart the broker."
            )
        case Fenced():
            # Its session had ended, for example because the process stood still. The others have served its clients.
            return (
                f"The broker {settings.broker_id} has been replaced: {error}. The other brokers serve what it owned. "
                "Start it again."
            )
        case LedgerFailed():
            return f"The journal cannot be written: {error}. Check the disk, then restart the broker."
        case PermissionError():
            return (
                f"Permission denied: {error.filename}. Let this user read and write the data folder "
                f"{settings.data_dir} and all that is in it, or choose another --data-dir."
            )
        case NotADirectoryError():
            return f"Cannot use {error.filename} as a folder: it is a file. Choose another --data-dir."
        case OSError():
            where = error.filename or settings.data_dir
            return f"Cannot use {where}: {error.strerror or error}. Check the disk and --data-dir."
        case _:
            return None
