"""The commands of sweeps: `launch` runs a sweep, `display` shows its progress, `job` is the process
of a job."""
