"""Comparisons with other libraries and methods, one module each; all run by `make bench`."""
