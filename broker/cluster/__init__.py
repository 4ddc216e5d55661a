"""Which broker owns what."""
