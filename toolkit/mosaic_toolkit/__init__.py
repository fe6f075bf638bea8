"""Capture, inspect, rewrite and compare the Mosaic IR that Pallas kernels lower to."""
