"""What a method costs in quality: how far the answers drift when a prompt's KV went through it."""
