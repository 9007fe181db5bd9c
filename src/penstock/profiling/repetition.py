"""Finds why a block can run more than once for one instance: a loop or a recursion around it."""

from __future__ import annotations

from penstock.ir.graph import Call, Context, Enter, Fork, Graph, Node


def repetition(graph: Graph, node: Node) -> str | None:
    """The nearest loop or recursion around a node, in words; None where it fires once a call."""
    openers = _openers(graph)
    seen: dict[int, None] = {node.context: None}
    work = [node.context]
    while work:
        index = work.pop(0)
        context = graph.contexts[index]
        if context.kind == "loop":
            return _loop_in_words(context)
        if _opens_itself(index, openers):
            return f"the recursion of {context.name}"
        above = [opener for opener in openers.get(index, ()) if opener not in seen]
        seen.update(dict.fromkeys(above))
        work.extend(above)
    return None


def _loop_in_words(loop: Context) -> str:
    if loop.window == 1:
        return f"the loop {loop.name}"
    return f"the loop {loop.name}, {loop.window} iterations at a time,"


def _openers(graph: Graph) -> dict[int, list[int]]:
    """For each context the contexts that call, enter or fork into it."""
    found: dict[int, list[int]] = {}
    for context in graph.contexts:
        for node in context.nodes:
            match node.operation:
                case Call(callee=inner) | Enter(loop=inner) | Fork(each=inner):
                    found.setdefault(inner, []).append(context.index)
    return found


def _opens_itself(index: int, openers: dict[int, list[int]]) -> bool:
    seen: set[int] = set()
    work = [index]
    while work:
        for above in openers.get(work.pop(), ()):
            if above == index:
                return True
            if above not in seen:
                seen.add(above)
                work.append(above)
    return False
