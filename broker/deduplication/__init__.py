"""Deduplication: what each producer has stored on a topic, so that its resends are not stored again."""
