"""The command line: parse, call, print. Nobody imports it; one file per command."""
