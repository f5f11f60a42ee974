"""Make the pictures in docs/images anew: reports of four small runs, as a browser shows them.

    python scripts/pictures.py --work build/pictures

Needs Chromium, pdftoppm (poppler-utils) and pngquant. The runs are those of ``userdp demo``, at two
ε each; they take some minutes, and are kept in the folder, where a second call finds them.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path

import userdp
from userdp.cli.demo_recipe import DEMO
from userdp.codec import encode
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.ledger import StoreLedger
from userdp.training.constants import constants_digest
from userdp.training.evaluate_run import evaluate_splits
from userdp.training.loop import train

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
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
    plans = {
        f"{name}-{epsilon:g}": replace(
            plan, budget=replace(plan.budget, target_epsilon=epsilon)
        ).calibrated()
        for epsilon in EPSILONS
        for name, plan in DEMO.plans
    }
    if not (work / "store").exists():
        userdp.prepare(
            list(DEMO.packages),
            source="docstrings",
            out=work / "store",
            seq_len=DEMO.seq_len,
            max_users=DEMO.most_users,
            held_out_users=DEMO.held_out_users,
            held_out_examples=0.0,
        )
        prices = [plan.guarantee() for plan in plans.values()]
        ledger = StoreLedger(work / "store")
        ledger.declare_total(
            sum(price.epsilon for price in prices) * (1 + 1e-12),
            sum(price.delta for price in prices) * (1 + 1e-12),
        )
        store = UserStore.open(work / "store")
        for plan in plans.values():  # all fixed before any ran, so that none inherits another
            ledger.declare(constants_digest(plan, encode(DEMO.config), store))
    store = UserStore.open(work / "store")
    for name, plan in plans.items():
        if not (work / name).exists():
            train(store, plan, DEMO.config, out=work / name, tensorboard=False)
            evaluate_splits(work / name, store, [Split.HELD_OUT_USERS], with_base=True)
    return [work / name for name in plans]


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


def screen(page: Path, out: Path, *, width: int, most: int = 1 << 16) -> None:
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
        f"--force-device-scale-factor={SCALE if width == WIDE else 1}",
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
    work = parser.parse_args().work
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


if __name__ == "__main__":
    main()
