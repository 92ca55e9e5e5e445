"""Scripts that show a policy how a task is done."""
