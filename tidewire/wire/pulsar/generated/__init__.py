"""tidewire/wire/pulsar/generated."""
