"""The layers whose per-unit gradients are known; each file holds a layer's rule and its norms.

Every module here registers its rules when it is imported (`engines.layer.stands_in_for`), and all
are imported with the package, so a new layer is a new file.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
