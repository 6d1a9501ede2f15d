"""What is observed, put into the status of an object. Pure."""
