"""Workers that serve: HTTP in one process, the model in another."""
