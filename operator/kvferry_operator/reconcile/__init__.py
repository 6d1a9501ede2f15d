"""One pass over one model in numbered steps, and all that it writes."""
