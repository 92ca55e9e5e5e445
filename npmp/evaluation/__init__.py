"""Evaluation of policies and skill modules: trials, suites, comparisons of runs."""
