"""The commands of userdp: each is one typed function, of Python and of the command line alike.

An answer is a dict, the object of ``--json``; or an object that can do more, such as `Run`. Two
modules help them: `arguments` with what commands are given, and `progress` with how long work is
shown. How a line or a file becomes arguments is told in `userdp.cli`.
"""
