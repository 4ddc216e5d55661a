"""Traces of OpenTelemetry: the broker's spans of messages that came with a trace context, and their export."""
