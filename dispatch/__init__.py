"""The dispatch room: which consumer gets which entry, and when. It knows no protocol and no transaction."""
