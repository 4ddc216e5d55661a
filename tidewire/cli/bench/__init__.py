"""`tidewire bench`: measures a broker with the load of one process. See `command`."""
