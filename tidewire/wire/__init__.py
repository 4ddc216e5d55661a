"""tidewire/wire."""
