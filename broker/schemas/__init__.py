"""Schemas of topics: their types, the rules of compatibility, and the store of their versions."""
