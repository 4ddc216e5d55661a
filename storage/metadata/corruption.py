"""The error for a damaged file of an embedded store."""

from pathlib import Path

from storage.metadata.store import MetadataError


class CorruptMetadata(MetadataError):
    """A file of the store is damaged, or not for this release. The store does not open."""

    def __init__(self, path: Path, offset: int, reason: str) -> None:
        super().__init__(f"{path}: damaged at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason
