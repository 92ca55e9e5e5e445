"""Sweeps: many jobs of one verb, on this machine's cores or on a cluster's.

`launch` takes what Hydra composed and makes a sweep's folder of it (`sweep`); `drive` runs the jobs
on `workers`, each in a process of its own (`job`), shows how far they are and does what died again.
"""
