"""The list of a backup's files: which must be there, how long they are, and what they contain.

    <backup>/backup.json      written last, so a backup without it is not complete
    <backup>/metadata/        the metadata as one snapshot
    <backup>/ledgers/         as in a data folder
    <backup>/brokers/<broker id>/journal/    the newest epoch's files, and all fences

The text has a checksum of its own. Pure: bytes in, values out.
"""

from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

import google_crc32c
import orjson

MANIFEST: Final = "backup.json"
FORMAT: Final = 1
"""The version of the format. A release refuses a later one."""


class BackupDamaged(Exception):
    """A file of the backup is missing, damaged or of a later release. The text names it and says what to do."""


class BackedUpFile(NamedTuple):
    """One file, by its path in the backup and in a data folder."""

    path: str
    length: int
    """How many bytes of it count. The rest is zeros."""
    size: int
    """The size of the file in a data folder."""
    crc: int = 0
    """CRC-32C of the bytes that count. It is 0 in a cut, which nobody has read yet."""


class Manifest(NamedTuple):
    """What a backup says about itself."""

    folder: str
    """Identity of the data folder that it is of."""
    cluster: str
    """Identity of the metadata root."""
    place: str
    """Where that folder was. For people."""
    made_ms: int
    """When its moment was, in milliseconds since the epoch."""
    batch: int
    """The last batch of the metadata log that it includes. Its log goes on behind it."""
    files: tuple[BackedUpFile, ...]

    def encode(self) -> bytes:
        """As JSON, with a checksum."""
        fields = {**self._asdict(), "format": FORMAT, "files": [tuple(each) for each in self.files]}
        return orjson.dumps({"crc32c": _checksum(fields), **fields}, option=orjson.OPT_INDENT_2) + b"\n"

    @classmethod
    def decode(cls, data: bytes, name: str) -> "Manifest":
        """What `encode` made. `name` is the file's name in messages.

        Raises:
            BackupDamaged: it is damaged, or of a later release.
        """
        try:
            fields: dict[str, Any] = orjson.loads(data)
            crc, version = fields.pop("crc32c"), fields["format"]
            if crc != _checksum(fields):
                raise ValueError("its checksum differs")
        except (AttributeError, KeyError, TypeError, ValueError) as damaged:
            raise BackupDamaged(f"{name} is damaged ({damaged}). Restore from another backup.") from damaged
        if version != FORMAT:
            raise BackupDamaged(
                f"{name} has format {version}, and this release knows only format {FORMAT}. Restore it with the "
                "release that made it."
            )
        del fields["format"]
        fields["files"] = tuple(BackedUpFile(*each) for each in fields["files"])
        manifest = cls(**fields)
        for each in manifest.files:
            path = PurePosixPath(each.path)
            if path.is_absolute() or ".." in path.parts:
                raise BackupDamaged(f"{name} names the file {each.path}, which is outside of it. Do not use it.")
        return manifest


def _checksum(fields: dict[str, Any]) -> int:
    return int(google_crc32c.value(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)))
