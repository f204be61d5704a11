"""Density estimation: experts that are distributions over Gaussians (Sections 3.2 and 4.2)."""
