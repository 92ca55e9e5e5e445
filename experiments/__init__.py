"""The commands: one short main per verb. The only package that uses Hydra."""
