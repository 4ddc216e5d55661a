"""Layouts of scalable topics: what they are, what must be true of them, and the records that hold them."""
