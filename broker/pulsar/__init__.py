"""broker/pulsar."""
