"""The version, apart from the package's root so that every module may import it."""

__version__ = "0.1.0"
