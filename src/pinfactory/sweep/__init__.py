"""Many trainings: on local processes, kept piece by piece in a store."""
