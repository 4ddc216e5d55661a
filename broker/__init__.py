"""The broker: topics, their ownership, their splits and merges, and the front ends that serve clients."""
