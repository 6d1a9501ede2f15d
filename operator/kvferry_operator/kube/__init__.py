"""Input and output with the API server: nothing outside this folder and `app` speaks to it."""
