"""docs/operations/upgrade.md lists the version of every on-disk format, and a later version is refused by name."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import google_crc32c
import orjson
import pytest

from broker.errors import LayoutUnreadable
from broker.layouts import record as layout
from storage import aborted_index, aborted_offsets, hidden_entries, journal_block, ledger_index
from storage.backup import manifest
from storage.entry import BATCH_MAGIC, CorruptEntry, TxnId, decode_batch_header
from storage.metadata import batches, record_codec
from storage.metadata.batches import BEGINNING, Body, Damage, encode_batches, read_batches
from storage.metadata.etcd.keys import FORMAT as ETCD_FORMAT
from storage.metadata.record_codec import CorruptRecord
from storage.metadata.records import FEATURE_LEVEL, FeatureLevel
from txn import marked_log

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "operations" / "upgrade.md").read_text(encoding="utf-8")

VERSIONS: Final = {
    "feature level of the metadata": FEATURE_LEVEL,
    "batches of the metadata log": batches._MAGIC.decode(),
    "records of the metadata log": record_codec._VERSION,
    "metadata in etcd": ETCD_FORMAT.decode(),
    "journal blocks": journal_block.BLOCK_MAGIC.to_bytes(4).decode(),
    "batches of a ledger": BATCH_MAGIC.to_bytes(4).decode(),
    "index of a ledger": ledger_index._MAGIC.to_bytes(4).decode(),
    "aborted transactions of a ledger": aborted_index._MAGIC.to_bytes(4).decode(),
    "entries of that index": aborted_index.VERSION,
    "aborted offsets of a Kafka log": aborted_offsets.VERSION,
    "producers of a Kafka log": marked_log.SNAPSHOT_VERSION,
    "hidden entries of a ledger": hidden_entries._MAGIC.to_bytes(4).decode(),
    "layout of a scalable topic": layout.VERSION,
    "list of a backup": manifest.FORMAT,
}

CONSTANT: Final = re.compile(
    r"^(?:_?VERSION|FORMAT|FEATURE_LEVEL|_?(?:[A-Z]+_)?MAGIC): Final = [^A-Z(]+$|TW[A-Z]\d", re.MULTILINE
)
"""A line that gives a format its version."""


def test_the_page_lists_each_version() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (\w+) \| [^|]+ \| [^|]+ \|$", PAGE, re.MULTILINE)
    listed = {name: version for name, version in rows if name != "format"}
    assert listed == {name: str(version) for name, version in VERSIONS.items()}


def test_no_format_in_storage_is_left_out() -> None:
    """A new module that names a version of a format has to be added to the table."""
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "storage").rglob("*.py")
        if "generated" not in path.parts and CONSTANT.search(path.read_text(encoding="utf-8"))
    }
    assert found == {
        "storage/aborted_index.py",
        "storage/aborted_offsets.py",
        "storage/backup/manifest.py",
        "storage/entry.py",
        "storage/hidden_entries.py",
        "storage/journal_block.py",
        "storage/ledger_index.py",
        "storage/metadata/batches.py",
        "storage/metadata/etcd/keys.py",
        "storage/metadata/record_codec.py",
        "storage/metadata/records.py",
    }


def later_record() -> None:
    whole = record_codec.encode(FeatureLevel(1, 1))
    kind, version, length = record_codec._HEADER.unpack_from(whole)
    header = record_codec._HEADER.pack(kind, version + 1, length)
    list(record_codec.decode(header + whole[len(header) :]))


def later_aborted_index() -> None:
    whole = aborted_index.encode(1, [aborted_index.AbortedSpan(TxnId(0, 1), 0, 1)])
    header, entry = whole[: aborted_index._HEADER.size], whole[aborted_index._HEADER.size :]
    entry = (aborted_index.VERSION + 1).to_bytes(2) + entry[2:]
    magic, _crc, owner, count = aborted_index._HEADER.unpack(header)
    crc = google_crc32c.value(aborted_index._HEADER.pack(magic, 0, owner, count) + entry)
    aborted_index.decode(1, aborted_index._HEADER.pack(magic, crc, owner, count) + entry)


def later_backup() -> None:
    fields = orjson.loads(manifest.Manifest("f", "c", "/data", 1, 1, ()).encode())
    del fields["crc32c"]
    fields["format"] += 1
    manifest.Manifest.decode(orjson.dumps({"crc32c": manifest._checksum(fields), **fields}), "backup.json")


@pytest.mark.parametrize(
    ("read", "error", "said"),
    [
        (
            lambda: list(record_codec.decode(record_codec.encode(FeatureLevel(1, FEATURE_LEVEL + 1)))),
            CorruptRecord,
            f"need feature level {FEATURE_LEVEL + 1}; this release reads up to {FEATURE_LEVEL}",
        ),
        (later_record, CorruptRecord, "version 1 is not known to this release"),
        (later_aborted_index, aborted_index.CorruptIndex, "version 2 is of a later release; this one reads version 1"),
        (
            lambda: aborted_offsets.decode(b"\0\1" + bytes(aborted_offsets.ENTRY_SIZE - 2)),
            aborted_offsets.UnknownIndexVersion,
            "an entry has version 1; this release reads version 0",
        ),
        (
            lambda: layout.from_json(b'{"version": 4}'),
            LayoutUnreadable,
            "The layout has version 4; this software reads versions 1 to 3",
        ),
        (later_backup, manifest.BackupDamaged, "backup.json has format 2, and this release knows only format 1"),
        (
            lambda: decode_batch_header(b"TWB2" + bytes(60)),
            CorruptEntry,
            "0x54574232 is not the magic number of a batch",
        ),
        (lambda: journal_block.decode_header(b"TWJ2" + bytes(60), 0), journal_block.DamagedBlock, "magic"),
        (lambda: aborted_index.decode(1, b"TWA2" + bytes(60)), aborted_index.CorruptIndex, "another format"),
        (
            lambda: hidden_entries.HiddenEntries.decode(1, b"TWH2" + bytes(60)),
            hidden_entries.DamagedHidden,
            "another format",
        ),
        (lambda: ledger_index.SparseIndex.decode(1, b"TWI2" + bytes(100)), ledger_index.StaleIndex, "another format"),
    ],
)
def test_a_later_version_is_refused(read: Callable[[], object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        read()


def test_a_later_batch_of_the_metadata_log_is_damage() -> None:
    data, _point = encode_batches(BEGINNING, [Body(b"body", 1)], confirmed=0, offset=0)
    (found,) = read_batches(data, BEGINNING)
    assert not isinstance(found, Damage)
    (found,) = read_batches(data.replace(b"TWM1", b"TWM2"), BEGINNING)
    assert isinstance(found, Damage)
