"""The commands of userdp: each is one typed function, of Python and of the command line alike."""
