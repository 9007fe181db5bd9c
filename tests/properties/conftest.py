"""Stands in for public names that the package does not export yet, as tests/semantics does."""

import tests.semantics.conftest  # noqa: F401
