"""Capture, inspect, rewrite and compare the Mosaic IR that Pallas kernels lower to."""

__version__ = "0.1.0"
