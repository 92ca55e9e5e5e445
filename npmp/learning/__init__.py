"""Training as library calls.

    npmp.learning.imitation.train_module(motions, robot, out)     motions -> a skill module
    npmp.learning.reuse.train_policy(module, task, out)           a skill module -> a high-level
    policy

`run` is the training loop of any algorithm: logs, checkpoints, resuming, stopping.
"""
