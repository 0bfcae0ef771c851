"""Tests of the core: blocks, tables, scheduler, policies, engine."""
