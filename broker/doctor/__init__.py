"""Looks for what is wrong with a cluster: collects facts, and judges them."""
