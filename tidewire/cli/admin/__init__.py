"""Commands that show and change what a cluster holds. They are clients of the brokers' admin HTTP API."""
