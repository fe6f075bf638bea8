"""Kernels of other people's libraries, captured to show that capture misses none.

`python -m tests.corpus` runs every case and prints captured / failed by cause.
"""
