"""tidewire/wire/pulsar."""
