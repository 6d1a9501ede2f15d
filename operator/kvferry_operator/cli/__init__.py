"""The `kvferry` command for people: one module for each sub-command."""
