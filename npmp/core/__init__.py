"""Foundations: settings, files, checkpoints, geometry, devices."""
