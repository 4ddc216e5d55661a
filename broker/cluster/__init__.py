"""The cluster: which brokers run, and which of them owns each topic."""
