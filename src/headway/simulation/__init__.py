"""Deployments under a virtual clock: what is simulated, on which workload, and what is measured of it."""
