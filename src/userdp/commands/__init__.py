"""The commands of userdp: each is one typed function, of Python and of the command line alike.

Three modules help them: `arguments` with what they are given, `answers` with what they return, and
`progress` with how long work is shown. How a line or a file becomes arguments is told in
`userdp.cli`.
"""
