"""The embedded metadata store of several brokers: one of them decides, and the others follow it over links."""
