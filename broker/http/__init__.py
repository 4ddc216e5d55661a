"""Administration and metrics over HTTP."""
