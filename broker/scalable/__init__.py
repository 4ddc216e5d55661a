"""broker/scalable."""
