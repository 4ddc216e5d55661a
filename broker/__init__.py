"""The broker room: topics, who owns them, how they split, and the faces through which clients reach them."""
