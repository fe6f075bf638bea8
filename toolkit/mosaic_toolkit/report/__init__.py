"""Renders values as text and JSON; computes nothing."""
