"""Pulsar's protocol: sessions that translate commands for the modules below, and store no data themselves."""
