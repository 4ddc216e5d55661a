"""The txn room."""
