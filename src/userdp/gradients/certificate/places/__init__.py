"""Which places the results of torch's functions have, one file for each kind of function.

Every module here registers its rules when it is imported (`places.place.places`), and all are
imported with the package.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
