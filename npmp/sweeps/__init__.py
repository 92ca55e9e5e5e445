"""Sweeps: many jobs of one verb, on this machine's cores or on a cluster's.

A sweep's folder (`sweep`) says what its jobs are and how far they came; `drive` runs them on
`workers`, each in a process of its own, and does what died again.
"""
