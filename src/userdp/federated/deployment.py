"""A federation on a real deployment: the app that Flower's ``flwr run`` sends to a SuperLink.

The apps are those of the simulation; only where each silo's folder lies differs.
"""

from __future__ import annotations

import json
from pathlib import Path

from userdp.federated.plan import PLAN_FILE, FederationPlan
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
