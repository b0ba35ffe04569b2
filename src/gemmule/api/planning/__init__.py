"""Plans of calls: executor, kernel and what runs."""
