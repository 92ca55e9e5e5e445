"""Skill modules, priors, networks and high-level policies, and those shipped with the package."""
