"""broker/http."""
