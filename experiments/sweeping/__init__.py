"""The commands of sweeps: `launch` makes a sweep's folder of a command line, `drive` shows how far
its jobs are, `job` is the process of one."""
