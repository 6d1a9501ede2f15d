"""Other movers of KV caches, installed apart from us and measured in turn with us."""
