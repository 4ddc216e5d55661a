"""The broker room: topics, who owns them, how they split, and the front ends through which clients reach them."""
