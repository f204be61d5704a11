"""Small experiments for tests of what runs them. They live in files, for other processes."""
