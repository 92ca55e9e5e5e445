"""Scripts of a user: teachers that algo=clone learns from (teacher=FILE.py:CLASS)."""
