"""``userdp completion``: completions of commands, options and their values, for a shell."""

from __future__ import annotations

from typing import Literal

from userdp.cli.output import Answer


def completion(shell: Literal["bash", "zsh", "fish"], /) -> Answer:
    """Write completions for your shell.

    They go to stdout. Write them to a file where the shell looks for them: for bash
    ~/.local/share/bash-completion/completions/userdp, for zsh the file _userdp in a folder of your
    fpath, for fish ~/.config/fish/completions/userdp.fish.

    Args:
        shell: bash, zsh or fish.
    """
    from userdp.cli.commands import build_app

    script = build_app().generate_completion(shell=shell)
    return Answer(values={"shell": shell, "script": script}, parts=[script.rstrip("\n")])
