"""Skill modules and what is built of them: priors, networks, policies, and those that ship."""
