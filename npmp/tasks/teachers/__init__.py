"""Scripted teachers."""
