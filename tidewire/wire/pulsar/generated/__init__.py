"""What `scripts/generate.py` makes of PulsarApi.proto. Nothing here is edited by hand."""
