"""Pulsar's protocol: sessions that translate commands for the rooms below and keep no data of their own."""
