"""The transaction room: states, headers, op records, the coordinator and what a segment does with them (DESIGN 7)."""
