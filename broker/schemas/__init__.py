"""Schemas of topics: what they are, which follow which, and where their versions are kept."""
