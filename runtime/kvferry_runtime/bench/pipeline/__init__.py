"""`bench pipeline`: what two stages gain where each has a link, and where each has a core, of its own."""
