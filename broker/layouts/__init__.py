"""Layouts of scalable topics: their content, their invariants, and their records in the metadata store."""
