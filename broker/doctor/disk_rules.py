"""What the doctor finds on the disk: damage, and records and files that disagree. Pure."""

from collections.abc import Iterator

from broker.doctor.facts import Facts
from broker.doctor.finding import Finding, counted, records_of


def unread_metadata(facts: Facts) -> Iterator[Finding]:
    """Nobody could read the metadata store. What is in it may be well or not."""
    if facts.records is None:
        yield Finding(
            "metadata-unread",
            "metadata",
            f"The metadata could not be read, so nothing is known of owners and records. {facts.unread}".rstrip(),
            "With metadata in etcd, see that etcd runs. Otherwise see the brokers' logs.",
        )


def unread_folder(facts: Facts) -> Iterator[Finding]:
    """The data folder could not be read, perhaps because the disk has stopped answering."""
    if facts.unread_folder:
        yield Finding(
            "folder-unread",
            facts.data_dir,
            f"The folder could not be read, so nothing is known of ledger files, journals and locks. "
            f"{facts.unread_folder}",
            "See that its disk works and is mounted. What its brokers were asked to store may wait for it.",
        )


def damaged_files(facts: Facts) -> Iterator[Finding]:
    """A file of the data folder cannot be read as what it is."""
    if facts.folder is not None:
        for path, reason in sorted(facts.folder.unreadable.items()):
            yield Finding(
                "damaged-file",
                path,
                f"It is damaged: {reason.rstrip('.')}.",
                "Restore it from a backup. Until then its broker does not start.",
            )


def damaged_records(facts: Facts) -> Iterator[Finding]:
    """A record cannot be read as what it is."""
    for key, reason in sorted(records_of(facts).unreadable.items()):
        yield Finding(
            "damaged-record",
            key,
            f"The record is damaged: {reason}.",
            f"See it with `tidewire metadata get {key}`. Restore the metadata from a backup; do not remove the record.",
        )


def other_cluster(facts: Facts) -> Iterator[Finding]:
    """Folder and metadata are of two clusters."""
    known, folder = records_of(facts).cluster, facts.folder
    if folder is not None and None not in (known, folder.cluster) and folder.cluster != known:
        yield Finding(
            "other-cluster",
            folder.path,
            f"The data folder belongs to the cluster {folder.cluster}, with its metadata in {folder.metadata}. The "
            f"metadata that was read is that of the cluster {known}.",
            "Name the folder and the metadata store of one cluster.",
        )


def lost_ledgers(facts: Facts) -> Iterator[Finding]:
    """A record names a ledger that has no file (E1, E3)."""
    records, folder = records_of(facts), facts.folder
    if facts.records is None or folder is None or folder.identity is None:
        return
    for ledger, name in sorted(records.ledgers.items()):
        is_here = records.folders.get(ledger, folder.identity) == folder.identity
        if is_here and ledger not in folder.ledgers and ledger not in records.leaving:
            yield Finding(
                "ledger-without-file",
                f"{ledger:020d}.ledger",
                f"The record of {name} names this ledger, and {folder.path}/ledgers has no file of it. Its messages "
                "cannot be read.",
                "Restore the file from a backup. Its topic opens, and readers stop in front of the gap.",
            )


def damages(facts: Facts) -> Iterator[Finding]:
    """Ledgers lost their ends with a damaged journal."""
    records = records_of(facts)
    for ledger, damage in sorted(records.damages.items()):
        name = records.ledgers.get(ledger, "a log that is gone")
        yield Finding(
            "journal-damage",
            f"{ledger:020d}.ledger",
            f"A damaged journal lost the end of this ledger of {name}, from byte {damage.offset}: {damage.reason}.",
            "Check the disk. Restore the journal's folder from a backup, or delete the topic if it can be filled anew.",
        )


def journals(facts: Facts) -> Iterator[Finding]:
    """The files and the record of a journal do not belong together."""
    records, folder = records_of(facts), facts.folder
    for broker, reason in sorted(facts.misfits.items()):
        is_needed = any(broker in log.open_writers for log in records.logs.values())
        if folder is not None and broker not in folder.brokers and not is_needed:
            yield Finding(
                "journal-without-folder",
                broker,
                f"The journal of {broker} is on record, and {folder.path}/brokers/{broker} is gone. Nothing waits for "
                "it.",
                f"If {broker} is to run again, restore its folder. Otherwise nothing is to be done.",
            )
        else:
            yield Finding("journal-misfit", broker, reason, "Do what it says before the broker starts again.")


def unnamed_ledgers(facts: Facts) -> Iterator[Finding]:
    """Files in the folder of ledgers that no record names."""
    if facts.folder is None:
        return
    records = records_of(facts)
    unnamed = sorted(facts.folder.ledgers - records.ledgers.keys() - records.leaving)
    if unnamed and facts.records is not None:
        files = [f"{ledger:020d}.ledger" for ledger in unnamed]
        yield Finding(
            "files-without-record",
            files[0],
            f"No record names {counted(files, 'ledger file')} in {facts.folder.path}/ledgers. A crash between a "
            "file and its record leaves an empty one. Metadata older than the folder leaves those with newer messages.",
            "If the metadata was restored, restore the newest. Otherwise they only take space. Back up before you "
            "remove them, with no broker running.",
        )
    if facts.folder.unknown:
        yield Finding(
            "unknown-files",
            facts.folder.unknown[0],
            f"Tidewire did not make {counted(facts.folder.unknown, 'file')} in {facts.folder.path}/ledgers.",
            "Move them elsewhere.",
        )
