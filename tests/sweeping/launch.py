"""Runs that would be processes side by side, in this process."""

import contextlib
import io

from userdp.cli.app import run as userdp


class Done:
    """A process that has ended."""

    def __init__(self, status):
        self.status = status

    def poll(self):
        return self.status

    def terminate(self):
        pass

    def wait(self):
        return self.status


class InProcess:
    """Runs trials here, one after the other; may crash or refuse one of them."""

    def __init__(self, *, crash_before=None, refuse=None):
        self.calls = []
        self.environments = []
        self._crash_before = crash_before
        self._refuse = refuse

    def __call__(self, arguments, *, log, environment):
        self.calls.append(arguments)
        self.environments.append(dict(environment))
        if len(self.calls) == self._crash_before:
            raise KeyboardInterrupt
        if len(self.calls) == self._refuse:
            log.write_text("error: the machine is out of memory\nhint: buy more\n")
            return Done(1)
        with contextlib.redirect_stdout(io.StringIO()):  # as a child's, which nobody reads
            return Done(userdp(arguments))
