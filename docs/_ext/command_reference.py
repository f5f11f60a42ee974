"""The command reference: a page for each command, made from the program itself at each build.

This file writes one page a command into ``docs/reference/commands``, which git ignores, so that no
page can be out of date.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx


def _write(path: Path, text: str) -> None:
    """Write what changed only: Sphinx reads anew what is newer."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _page(name: str) -> str:
    """What a command does, all that it takes, and a line to try."""
    from userdp.cli.command_line import Command

    command = Command(name)
    rows = []
    for one in command._actions:
        if one.help == argparse.SUPPRESS:
            continue
        spelled = " ".join([", ".join(one.option_strings), *filter(None, [one.metavar])]).strip()
        told = " ".join(str(one.help).replace("%%", "%").replace("|", "&#124;").split())
        rows.append(f"| `{spelled}` | {told} |")
    if "--settings" in command.format_help():
        rows += [
            "| `--set TEXT` | a further setting, as SECTION.FIELD=VALUE |",
            f"| `--settings` | lists all that `--set` reaches: `userdp {name} --settings` |",
        ]
    listed = "\n".join(["| | |", "|---|---|", *rows])
    shown = f"For example:\n\n```console\n{command.example}\n```"
    return "\n\n".join([f"# userdp {name}", command.about.strip(), listed, shown, ""])


def _generate(sphinx: Sphinx) -> None:
    """All pages, before Sphinx looks for sources."""
    from userdp.cli.command_line import NAMES, Command

    folder = Path(sphinx.srcdir) / "reference" / "commands"
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: name.replace(" ", "-") for name in NAMES}
    for old in folder.glob("*.md"):
        if old.stem not in (*files.values(), "index"):
            old.unlink()
    for name, file in files.items():
        _write(folder / f"{file}.md", _page(name))
    told = {name: Command(name).about.partition("\n")[0] for name in NAMES}
    rows = [f"| [`userdp {name}`]({file}.md) | {told[name]} |" for name, file in files.items()]
    listed = "\n".join(files.values())
    _write(
        folder / "index.md",
        "# Commands\n\nEvery command takes `--json` (one JSON object on stdout, errors too; "
        "progress goes to stderr) and\n`--config FILE` (a TOML file with a section for each "
        "command, which options override). Exit status: 0 done,\n1 failed, 2 bad use, 130 "
        "interrupted.\n\n| command | |\n|---|---|\n"
        + "\n".join(rows)
        + f"\n\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n",
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("builder-inited", _generate)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
