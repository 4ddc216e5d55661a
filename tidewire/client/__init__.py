"""tidewire/client."""
