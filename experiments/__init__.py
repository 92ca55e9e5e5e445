"""The commands: one short main per verb. No other package imports Hydra."""
