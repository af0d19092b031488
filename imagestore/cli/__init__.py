"""The command line: one module for each noun, loaded when its command runs."""
