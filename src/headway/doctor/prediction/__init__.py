"""A simulation fitted to the evidence, and what it predicts of each fix."""
