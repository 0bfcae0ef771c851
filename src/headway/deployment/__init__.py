"""Reads a vLLM deployment in any form people write it, without running anything, and says what its flags do."""
