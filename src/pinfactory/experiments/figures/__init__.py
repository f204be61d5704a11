"""The figures and tables of the paper: every module whose name has no underscore first."""
