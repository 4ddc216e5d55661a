"""Protocols as bytes and commands, without IO, for clients and the broker alike."""
