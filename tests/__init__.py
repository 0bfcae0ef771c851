"""Tests of headway."""
