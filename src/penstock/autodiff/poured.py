"""The tape of a run in a template: its pages are made only for those who want them one by one.

A backward pass that goes through all rows goes back as the template's own way does, as a CUDA
graph. Others go the plain way, through pages whose values are those of the template.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from penstock.autodiff.poured_way import PouredWay
from penstock.autodiff.reverse import Reversal
from penstock.autodiff.tape import Entry, Page, Tape, TapedRun
from penstock.autodiff.versions import check_version
from penstock.plan.schedule import Integers, Launch
from penstock.run.fused.indices import Indices
from penstock.run.templates.template import Poured

if TYPE_CHECKING:
    from penstock.autodiff.ends import Ends

log = logging.getLogger("penstock")


class PouredTape(Tape):
    """The tape of a run in a template; its pages are made when they are asked for."""

    def __init__(self, run: TapedRun, plan: Poured) -> None:
        self._run, self.plan = weakref.ref(run), plan
        self._entries: list[Entry] | None = None
        #: Whether it was gone through for the last time.
        self.is_used_up = False

    @property
    def is_apart(self) -> bool:
        """Whether nobody has asked for pages."""
        return self._entries is None

    @property
    def entries(self) -> list[Entry]:  # type: ignore[override]
        """The pages, whose saved values are those of the template."""
        if self._entries is None:
            plan = self.plan
            steps = zip(plan.stages, plan.launches, plan.instances, strict=True)
            self._entries = [self._page(*step) for step in steps]
        return self._entries

    def _page(self, stage: int, launch: Launch, instances: Integers) -> Page:
        run = self._run()
        assert run is not None
        operands, results = run.flows(launch.block)
        page = Page(launch, run.blocks[launch.block])
        if not operands or not results:
            return page
        page.operands, page.results, page.instances = operands, results, instances
        page.indices = Indices()
        form = page.form = run.whole_form(launch.block)
        assert form is not None
        room, made = self.plan.template.stages[stage].room, self.plan.template.saved[stage]
        pairs = zip(made, form.saved, strict=True)
        page.save([_rows_of(values, kept.dimension, launch.rows, room) for values, kept in pairs])
        page.is_lasting = page.is_apart = True
        if self.is_used_up:
            page.use(None, is_last=True)
        return page


def _rows_of(values: torch.Tensor, dimension: int | None, rows: int, room: int) -> torch.Tensor:
    """The first rows of a saved value, which others lie behind."""
    if dimension is None:
        return values
    return values.narrow(dimension, 0, rows * (values.shape[dimension] // room))


def go_poured_way(ends: Ends, put: Callable[[Reversal], None]) -> Reversal | None:
    """What the way back through a template leads to, gone for the last time; None where it must be
    gone the plain way.
    """
    run = ends.run
    if not isinstance(run, TapedRun) or not isinstance(run.tape, PouredTape):
        return None
    tape, template = run.tape, run.tape.plan.template
    if not tape.is_apart or tape.is_used_up or template.way is False:
        return None
    for number, version in run.versions.items():
        check_version(run.uniforms[number], version)
    try:
        if template.way is None:
            own = template.own
            assert isinstance(own, TapedRun)
            template.way = PouredWay(template, own)
        found: Reversal | None = template.way.go(run, tape.plan, put)
    except Exception as problem:  # torch tells in many ways that work cannot be captured
        log.info("ways back through fresh plans run without a CUDA graph: %s", problem)
        template.way = False
        return None
    if found is not None:
        tape.is_used_up = True
        template.let_go()
    return found
