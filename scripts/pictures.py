"""Make the pictures in docs/images anew: reports of four small runs as a browser shows and prints
them, and what two commands print in a terminal of 80 columns.

    python scripts/pictures.py --work build/pictures

Needs Chromium, pdftoppm (poppler-utils) and pngquant. The runs train from docstrings, each at two
ε; they take some minutes, and are kept in the folder, where a second call finds them.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text

import userdp
from userdp.data.splits import Split
from userdp.data.user_store import UserStore

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
PACKAGES = ("numpy", "scipy", "pyarrow")
"""About 600 modules."""
PREPARED: dict[str, Any] = {
    "source": "docstrings",
    "seq_len": 64,
    "held_out_users": 0.02,
    "held_out_examples": 0.0,
}
TRAINED: dict[str, Any] = {
    "delta": 1e-5,
    "steps": 12,
    "l2_clip_norm": 1.0,
    "learning_rate": 2e-3,
    "checkpoint_every": 12,
}
RUNS: dict[str, dict[str, Any]] = {
    "uls": {"population": 600, "cohort_size": 20, "group_size": 2},
    "els": {
        "settings": ["sampling.kind=examples"],
        "population": 3_800,
        "batch_size": 40,
        "group_size": 8,
    },
}
"""Both expect 40 gradients a step."""
EPSILONS = (8.0, 2.0)
WIDE, NARROW = 1400, 420
SCALE = 0.6
"""Of pictures of wide pages: laid out at 1,400 pixels, kept smaller."""
MOST_BYTES = 150_000
ABOUT = {
    "organisation": "Example Institute",
    "contact": "privacy@example.org",
    "data_description": "Docstrings of installed Python packages; a module stands for a person.",
}


def make_runs(work: Path) -> list[Path]:
    """ULS and ELS at two ε each, on docstrings, from the bundled model."""
    runs = {
        f"{name}-{epsilon:g}": TRAINED | sampled | {"epsilon": epsilon}
        for epsilon in EPSILONS
        for name, sampled in RUNS.items()
    }
    if not (work / "store").exists():
        store = userdp.prepare(PACKAGES, out=work / "store", **PREPARED)
        for name, options in runs.items():  # all fixed before any ran: so none inherits another
            userdp.train(store, out=work / name, declare=True, **options)
    store = UserStore.open(work / "store")
    for name, options in runs.items():
        if not (work / name).exists():
            userdp.train(store, out=work / name, **options)
            userdp.evaluate(work / name, store=store, split=[Split.HELD_OUT_USERS])
    return [work / name for name in runs]


def chromium(*arguments: str) -> None:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))))
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={profile}", *arguments],
            check=True, capture_output=True,
        )  # fmt: skip


def height_of(page: Path, *, width: int) -> int:
    """How many pixels a page is high in a window of this width.

    The page stands in a frame, as a window without a screen has no less than 500 pixels.
    """
    probe = page.with_name("probe.html")
    probe.write_text(
        f'<body style="margin:0"><iframe src="{page.name}" style="border:0;width:{width}px;'
        'height:100px" onload="document.title=this.contentDocument.documentElement.scrollHeight">'
    )
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))))
    done = subprocess.run(
        [program, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         "--dump-dom", probe.as_uri()],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    probe.unlink()
    return int(done.stdout.split("<title>")[1].split("</title>")[0])


def screen(
    page: Path, out: Path, *, width: int, most: int = 1 << 16, scale: float | None = None
) -> None:
    """The page at a width, from its top, as a small PNG of at most so many pixels in height."""
    height = min(height_of(page, width=width), most)
    frame = page.with_name("frame.html")
    frame.write_text(
        f'<body style="margin:0"><iframe src="{page.name}" '
        f'scrolling="no" style="border:0;width:{width}px;height:{height}px"></iframe>'
    )
    chromium(
        f"--screenshot={out}",
        f"--window-size={width},{height}",
        f"--force-device-scale-factor={scale or (SCALE if width == WIDE else 1)}",
        frame.as_uri(),
    )
    frame.unlink()
    small(out)
    print(f"{out.name}: {width} x {height}, {out.stat().st_size:,} bytes")


def printed(page: Path, out: Path) -> None:
    """The page as it is printed: the first sheet."""
    with tempfile.TemporaryDirectory() as folder:
        pdf = Path(folder) / "printed.pdf"
        chromium("--no-pdf-header-footer", f"--print-to-pdf={pdf}", page.as_uri())
        told = subprocess.run(["pdfinfo", pdf], check=True, capture_output=True, text=True).stdout
        pages = next(line.split()[1] for line in told.splitlines() if line.startswith("Pages"))
        subprocess.run(
            ["pdftoppm", "-png", "-r", "90", "-singlefile", pdf, out.with_suffix("")], check=True
        )
    small(out)
    print(f"{out.name}: {pages} pages in print, {out.stat().st_size:,} bytes")


def sheets(page: Path, out: Path, *, across: int = 3) -> None:
    """All sheets that a page is printed on, side by side in rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pdf = folder / "printed.pdf"
        chromium("--no-pdf-header-footer", f"--print-to-pdf={pdf}", page.as_uri())
        subprocess.run(["pdftoppm", "-png", "-r", "80", pdf, folder / "sheet"], check=True)
        found = sorted(folder.glob("sheet*.png"))
        images = "".join(f'<img src="{one.name}">' for one in found)
        (folder / "sheets.html").write_text(
            "<style>body{margin:0;padding:12px;background:#9aa4ae;display:grid;gap:12px;"
            f"grid-template-columns:repeat({across},1fr)}}img{{width:100%;display:block}}</style>"
            f"<body>{images}</body>"
        )
        screen(folder / "sheets.html", out, width=WIDE, scale=1)
    print(f"{out.name}: {len(found)} sheets")


def terminal(arguments: list[str], out: Path) -> None:
    """What a command prints in a terminal of 80 columns, in colour."""
    done = subprocess.run(
        [sys.executable, "-m", "userdp", *arguments],
        env={**os.environ, "COLUMNS": "80", "FORCE_COLOR": "1", "TERM": "xterm-256color"},
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    console = Console(
        record=True, width=80, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text(f"$ userdp {' '.join(arguments)}\n", style="bold"))
    console.print(Text.from_ansi(done.stdout))
    html = console.export_html(
        theme=DEFAULT_TERMINAL_THEME,
        inline_styles=True,
        code_format="<body style='margin:16px;background:{background};color:{foreground}'>"
        "<pre style=\"font:14px/18px 'DejaVu Sans Mono',monospace;margin:0\">{code}</pre></body>",
    )
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "terminal.html"
        page.write_text(html, encoding="utf-8")
        screen(page, out, width=80 * 9, scale=1)


def small(picture: Path) -> None:
    """Fewer colours, without dithering, until the file is small enough for a repository."""
    for colours in (32, 16, 8, 4):
        subprocess.run(
            ["pngquant", "--force", "--strip", "--nofs", "--speed", "1", "--output", picture,
             str(colours), "--", picture],
            check=True,
        )  # fmt: skip
        if picture.stat().st_size < MOST_BYTES:
            return
    raise SystemExit(f"{picture} has {picture.stat().st_size:,} bytes, even in four colours")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    work = parser.parse_args().work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    IMAGES.mkdir(exist_ok=True)
    runs = make_runs(work)
    pages = {name: work / f"{name}.html" for name in ("public", "operator", "compare", "summary")}
    store = work / "store"
    userdp.report(
        runs[0], out=pages["public"], summary=pages["summary"], public=True, store=store,
        report_date=date(2026, 1, 1), **ABOUT,
    )  # fmt: skip
    userdp.report(runs[0], out=pages["operator"], **ABOUT)
    userdp.report(runs, out=pages["compare"], public=True, **ABOUT)
    screen(pages["public"], IMAGES / "report-public.png", width=WIDE)
    screen(pages["public"], IMAGES / "report-public-420.png", width=NARROW, most=3000)
    screen(pages["operator"], IMAGES / "report-operator.png", width=WIDE)
    screen(pages["compare"], IMAGES / "report-compare.png", width=WIDE)
    printed(pages["summary"], IMAGES / "report-summary.png")
    sheets(pages["public"], IMAGES / "report-printed.png")
    here = Path.cwd()
    os.chdir(work)  # so that the line that is shown names no folder of this machine
    terminal(["evaluate", runs[0].name, "--store", "store"], IMAGES / "evaluate.png")
    os.chdir(here)


if __name__ == "__main__":
    main()
