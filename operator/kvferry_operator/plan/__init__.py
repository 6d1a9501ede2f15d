"""What is observed → the next step towards what the object says: revisions, replacement, numbers. Pure."""
