"""Transactions: states, headers, op records, the coordinator, each segment's part (docs/design.md#transactions)."""
