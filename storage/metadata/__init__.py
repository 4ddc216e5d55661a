"""The metadata store: one contract (`store`), several implementations, one conformance suite for all of them."""
