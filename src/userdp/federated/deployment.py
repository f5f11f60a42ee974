"""A federation on a real deployment: the Flower app that ``flwr run`` sends to a SuperLink.

The apps are those of the simulation; only where each silo's folder lies differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from userdp.errors import FailureError, UseError
from userdp.federated.plan import FederationPlan
from userdp.federated.silo import PLAN_FILE
from userdp.files import write_file

APP_FOLDER = "app"

_PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "userdp-federation"
version = "1.0.0"
description = "A federation of userdp, plan {digest}"
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<2"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "userdp"

[tool.flwr.app.components]
serverapp = "federation_app.apps:server"
clientapp = "federation_app.apps:client"

[tool.flwr.app.config]
folder = {folder}
round-timeout = {round_timeout}
wait-timeout = {wait_timeout}
"""

_APPS = '''"""The two apps; both come from userdp, which every machine has installed."""

from userdp.federated.client import client_app
from userdp.federated.server import server_app

client = client_app()
server = server_app()
'''


def write_app(folder: Path, *, round_timeout: float = 3600.0, wait_timeout: float = 600.0) -> Path:
    """Write the Flower app of a federation's folder, and say where it is.

    Args:
        folder: made by `userdp.federated.simulation.make_federation`; the server's machine reads
            the plan there and writes the weights there.
        round_timeout: seconds to wait for a round's updates.
        wait_timeout: seconds to wait for all silos before the first round.
    """
    plan = FederationPlan.load(folder / PLAN_FILE)
    app = folder / APP_FOLDER
    package = app / "federation_app"
    package.mkdir(parents=True, exist_ok=True)
    project = _PROJECT.format(
        digest=plan.digest[:16],
        folder=json.dumps(str(folder.resolve())),
        round_timeout=float(round_timeout),
        wait_timeout=float(wait_timeout),
    )
    write_file(app / "pyproject.toml", project.encode())
    write_file(package / "__init__.py", b'"""A federation of userdp."""\n')
    write_file(package / "apps.py", _APPS.encode())
    return app


def submit(folder: Path, connection: str) -> str:
    """Start a federation's run on a SuperLink, and give back what Flower says.

    Args:
        folder: the server's, with its app.
        connection: a SuperLink's name in Flower's own configuration, which holds its address and
            certificate.

    Raises:
        UseError: there is no app in the folder.
        FailureError: Flower refused.
    """
    app = folder / APP_FOLDER
    if not (app / "pyproject.toml").exists():
        raise UseError(
            f"{folder} holds no federation's app",
            hint="make it with `userdp federate DATA --out FOLDER --runtime deployment`",
        )
    found = subprocess.run(
        [str(Path(sys.executable).with_name("flwr")), "run", str(app), connection],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode != 0:
        said = (found.stderr or found.stdout).strip().splitlines()
        raise FailureError(
            f"Flower did not start the run: {said[-1] if said else 'no reason given'}",
            hint="see `flwr config list` for the connections, and the SuperLink's log",
        )
    return found.stdout.strip()
