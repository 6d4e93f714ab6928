"""Correctness, plans and timing of kernels.  Knows no kernel in particular."""
