"""Links from a page to files of the repository that are no pages: shown as file names.

Pages are read in two places. In the repository, `[the test](../tests/test_clip.py)` opens the file;
on the site there is no such file, so the link becomes the file's name. A file that does not exist
is a warning, and so an error of ``make docs``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


def _resolve(app: Sphinx, env: Any, node: Any, contnode: Any) -> Any:
    """The file's name for a link that leads out of the documentation."""
    target = str(node.get("reftarget", "")).partition("#")[0]
    page = Path(app.srcdir) / f"{node.get('refdoc', '')}.md"
    if not target or "://" in target:
        return None
    file = (page.parent / target).resolve()
    outside = not file.is_relative_to(Path(app.srcdir).resolve())
    if outside and file.exists():
        return nodes.literal(text=contnode.astext())
    return None


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("missing-reference", _resolve, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
