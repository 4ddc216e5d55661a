"""Scalable topics: their layout, how it changes, and who reads which segment."""
