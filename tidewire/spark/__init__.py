"""tidewire/spark."""
