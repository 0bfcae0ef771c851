"""The serving core: requests, KV blocks, the scheduler and the engine loop.

It knows nothing of torch, numpy, HTTP, text or the real time of day: time is an argument, and what a token means is the
business of executors and frontends. Standard library only.
"""
