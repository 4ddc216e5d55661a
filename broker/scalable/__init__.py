"""Scalable topics: how their layouts change, and who reads which segment."""
