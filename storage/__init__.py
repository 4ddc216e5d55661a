"""The storage room: files, journal, ledgers, cursors, the metadata store. Knows no protocol and no transaction."""
