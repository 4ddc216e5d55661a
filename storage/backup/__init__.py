"""Backups of a data folder: a consistent cut of a running broker, its copy, and a new folder made from the copy."""
