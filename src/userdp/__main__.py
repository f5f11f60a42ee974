"""``python -m userdp`` is the command line."""

from userdp.cli.app import main

main()
