"""The command line: parse, call, print. No other room imports it."""
