"""The dispatch room: subscriptions, and who is sent what. Knows storage, but no protocol and no transaction."""
