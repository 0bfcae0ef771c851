"""What could be changed, the smallest change first, and what must not be."""
