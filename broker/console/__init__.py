"""The console: a page that the broker serves, and the streams of events that keep it live."""
