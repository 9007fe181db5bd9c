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

from penstock.autodiff.page import Page
from penstock.autodiff.poured_way import PouredWay
from penstock.autodiff.reverse import Reversal
from penstock.autodiff.tape import Entry, Tape
from penstock.autodiff.taped_run import TapedRun
from penstock.autodiff.versions import check_version
from penstock.plan.schedule import Integers, Launch
from penstock.run.fused.indices import Indices
from penstock.run.templates.template import Poured, Template

if TYPE_CHECKING:
    from penstock.autodiff.ends import Ends

log = logging.getLogger("penstock")


class PouredTape(Tape):
    """The tape of a run in a template; its pages are made when they are asked for."""

    def __init__(self, run: TapedRun, plan: Poured) -> None:
        super().__init__()
        self._run, self.plan = weakref.ref(run), plan
        self.is_folded = True

    def use_up(self) -> None:
        """It was gone through for the last time: the template is free."""
        if self.plan.template is not None:
            self.plan.template.let_go()
        self.plan.template = None

    @property
    def is_apart(self) -> bool:
        """Whether nobody has asked for pages."""
        return self.is_folded

    @property
    def has_strips(self) -> bool:
        """Its pages are those of a template."""
        return False

    def _unfolded(self) -> list[Entry]:
        """The pages, whose saved values are those of the template."""
        steps = zip(self.plan.stages, self.plan.launches, self.plan.instances, strict=True)
        return [self._page(*step) for step in steps]

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
        template = self.plan.template
        if template is None:
            page.use(None, is_last=True)
            return page
        room, made = template.stages[stage].room, template.saved[stage]
        pairs = zip(made, form.saved, strict=True)
        page.save([_rows_of(values, kept.dimension, launch.rows, room) for values, kept in pairs])
        page.is_lasting = page.is_apart = True
        return page


def _rows_of(values: torch.Tensor, dimension: int | None, rows: int, room: int) -> torch.Tensor:
    """The first rows of a saved value, which others lie behind."""
    if dimension is None:
        return values
    return values.narrow(dimension, 0, rows * (values.shape[dimension] // room))


def poured_gradients(
    ends: Ends, put: Callable[[Reversal], None]
) -> list[torch.Tensor | None] | None:
    """The gradients that the way back through a template leads to, gone for the last time; None
    where it must be gone the plain way.
    """
    run = ends.run
    if not isinstance(run, TapedRun) or not isinstance(run.tape, PouredTape):
        return None
    tape, template = run.tape, run.tape.plan.template
    if not tape.is_apart or template is None:
        return None
    if torch.are_deterministic_algorithms_enabled():
        return None
    way = _way_through(template)
    if way is None:
        return None
    for number in way.read & run.versions.keys():
        check_version(run.uniforms[number], run.versions[number])
    try:
        found = way.go(run, tape.plan, put)
    except Exception as problem:  # torch tells in many ways that work cannot be captured
        _tell(template, problem)
        return None
    if found is None:
        return None
    gradients = ends.gradients(found)
    tape.use_up()
    run.poured = None
    return gradients


def _way_through(template: Template) -> PouredWay | None:
    """The way back through a template, if there is one."""
    if template.way is None:
        assert isinstance(template.own, TapedRun)
        try:
            template.way = PouredWay(template, template.own)
        except Exception as problem:  # not all launches can go back so
            _tell(template, problem)
    return template.way or None


def _tell(template: Template, problem: Exception) -> None:
    log.info("ways back through fresh plans run without a CUDA graph: %s", problem)
    template.way = False


def rest_poured(run: object) -> None:
    """A pass is over: where all rows have gone back for the last time, the template is free."""
    if isinstance(run, TapedRun) and isinstance(run.tape, PouredTape):
        tape = run.tape
        if not tape.is_apart and all(map(_is_over, tape.entries)):
            tape.use_up()
            run.poured = None


def _is_over(entry: Entry) -> bool:
    return not isinstance(entry, Page) or not entry.results or entry.is_used_up
