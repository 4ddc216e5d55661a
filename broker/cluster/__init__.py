"""broker/cluster."""
