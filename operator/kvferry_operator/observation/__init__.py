"""One model and everything that belongs to it, as a pass sees it: data, and what they say. Pure."""
