"""Scalable topics: how their layouts change, and which consumer reads which segment."""
