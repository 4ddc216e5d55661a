"""The embedded metadata store of one or several brokers: one of them decides, and the others follow it over links."""
