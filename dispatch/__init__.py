"""The dispatch room: which consumer is sent which entry, and when. Knows no protocol and no transaction."""
