"""The command reference: a page for each command, made from the program itself at each build.

`cyclopts` turns a command's signature and docstring into Markdown; this file writes one page a
command into ``docs/reference/commands``, which git ignores, so that no page can be out of date.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cyclopts import App
from sphinx.application import Sphinx

_OFF = "[default: False]"


def _write(path: Path, text: str) -> None:
    """Write what changed only: Sphinx reads anew what is newer."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _pages(app: App) -> dict[str, str]:
    """The page of each command, by its name.

    The whole program is written at once and cut: only then do its defaults (no ``--no-flag``) and
    its name in front of each usage line hold for the commands.
    """
    whole: str = app.generate_docs(output_format="markdown", recursive=True)
    parts = re.split(r"(?m)^## userdp (.+)\n", whole)[1:]
    pages = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        text = text.replace(f" *{_OFF}*", "")  # a flag that is not given is off
        example = str(app[name].help_epilogue).rpartition("Try: ")[2]
        shown = f"For example:\n\n```console\n{example}\n```\n"
        pages[name] = f"# userdp {name}\n{text.rstrip()}\n\n{shown}"
    return pages


def _generate(sphinx: Sphinx) -> None:
    """All pages, before Sphinx looks for sources."""
    from userdp.cli.commands import build_app

    app = build_app()
    folder = Path(sphinx.srcdir) / "reference" / "commands"
    folder.mkdir(parents=True, exist_ok=True)
    pages = _pages(app)
    for old in folder.glob("*.md"):
        if old.stem not in (*pages, "index"):
            old.unlink()
    for name, text in pages.items():
        _write(folder / f"{name}.md", text)
    lines = {name: app[name].help.partition("\n")[0] for name in pages}
    rows = [f"| [`userdp {name}`]({name}.md) | {line} |" for name, line in lines.items()]
    listed = "\n".join(pages)
    _write(
        folder / "index.md",
        "# Commands\n\nEvery command takes `--json` (one JSON object on stdout, errors too; "
        "progress goes to stderr) and\n`--config FILE` (a TOML file with a section for each "
        "command, which options override). Exit status: 0 done,\n1 failed, 2 bad use.\n\n"
        "| command | |\n|---|---|\n"
        + "\n".join(rows)
        + f"\n\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n",
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("builder-inited", _generate)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
