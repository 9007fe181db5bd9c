"""All programs in the style of existing eager code, by name."""

from tests.existing_code.harness import Table
from tests.existing_code.programs import (
    changes,
    contexts,
    functions,
    indexing,
    modules,
    outputs,
    questions,
    recursion,
    shapes,
)

#: In-place operations and views have a test file of their own.
CHANGES: Table = changes.TABLE

STYLES: Table = Table()
for part in (recursion, shapes, functions, indexing, questions, modules, contexts, outputs):
    assert not STYLES.keys() & part.TABLE.keys()
    STYLES.update(part.TABLE)
