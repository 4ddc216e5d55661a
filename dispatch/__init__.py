"""The dispatch room."""
