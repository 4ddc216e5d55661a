"""What each producer has stored on a topic, so that what it sends again is not stored again."""
