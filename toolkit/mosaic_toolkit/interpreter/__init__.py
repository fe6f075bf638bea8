"""Executes captured modules: the definition of what the dialects mean."""
