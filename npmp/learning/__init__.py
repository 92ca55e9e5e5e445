"""Training as library calls: whole runs, and what makes a run survive.

    npmp.learning.imitation.train_module(motions, robot, out)     motions -> a skill module
    npmp.learning.reuse.train_policy(module, make_task, out)      a skill module -> a high-level
    policy

`run` is the loop around any algorithm: logs (`log`, `loggers`), checkpoints, what stops it
(`guard`, `signals`).
"""
