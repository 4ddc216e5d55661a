"""Kafka's classic consumer groups: who is in a group, who reads which partition, and how far the group has read.

Nothing here knows the bytes of the protocol. Requests and answers are plain values (`values.py`).
"""
