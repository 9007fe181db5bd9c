"""A point in a trace to which it can go back, as if what was traced since had not been."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.ir.program import AsSequence, Node

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


class Checkpoint:
    """The state of the body that is being filled."""

    def __init__(self, tracer: Tracer) -> None:
        self._scope = tracer.scope
        self._nodes = list(self._scope.nodes)
        self._sites = self._scope.sites
        #: Tensors that existed, with the values they stood for: changes in place show here.
        self._values = [(alive, tensor.traced.value) for alive, tensor in tracer.alive()]

    def later_nodes(self) -> list[Node]:
        """What was added since."""
        return self._scope.nodes[len(self._nodes) :]

    @property
    def can_restore(self) -> bool:
        """Whether no tensor that existed has been changed in place."""
        pairs: list[tuple[Any, Any]] = [(alive(), value) for alive, value in self._values]
        return all(tensor is None or tensor.traced.value is value for tensor, value in pairs)

    def restore(self) -> None:
        """Go back."""
        later = self.later_nodes()
        made = {value for node in later for value in node.outputs}
        kept = [
            node
            for node in later
            if isinstance(node.operation, AsSequence) and node.inputs[0] not in made
        ]
        self._scope.nodes[:] = [*self._nodes, *kept]
        self._scope.sites = self._sites
