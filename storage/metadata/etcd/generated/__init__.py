"""What `scripts/generate.py` makes of etcd.proto and stored.proto. Nothing here is edited by hand."""
