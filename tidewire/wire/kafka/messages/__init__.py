"""Requests and responses of Kafka's protocol, one module for each request. The names are those of Kafka's guide.

Each class stands for all versions (`fields.py`). The comments name the KIP where a field is not plain from its name.
"""
