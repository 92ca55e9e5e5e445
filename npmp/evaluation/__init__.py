"""How well policies and skill modules do, measured: trials, suites, comparisons of runs."""
