"""The tape of a run: what was launched and what each launch left for its backward half, in order.

A page is what one launch saved; values that are only views of an arena are copied for it, because
the arena's slots are used again. Taping is the same for calls of programs and for recorded steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeGuard

import torch

from penstock.autodiff.forms import Form, training_form
from penstock.autodiff.joint import TrainingForm
from penstock.autodiff.lent_rows import find_lent
from penstock.autodiff.opaque import launch_kept
from penstock.autodiff.page import Page
from penstock.autodiff.strips import Strip
from penstock.autodiff.versions import check_version
from penstock.plan.schedule import Copy, Pad, Span, Store, Unpad
from penstock.run.batched.emit import BatchFunction
from penstock.run.distinct import find_distinct, hand_out, run_distinct
from penstock.run.fused.binding import FusedLaunch, bind_launch
from penstock.run.fused.form import FusedForm
from penstock.run.prepared import (
    Prepared,
    PreparedCopy,
    PreparedLaunch,
    PreparedPadding,
    PreparedStore,
)
from penstock.run.runner import Runner
from penstock.run.step_blocks import OpaqueBlock
from penstock.run.straight import Note

#: The operands and results of a launch that carry gradients, and whether it saves rows only.
Asked: TypeAlias = tuple[Sequence[int], Sequence[int], bool]

#: One step of a tape.
Entry: TypeAlias = Page | Copy | Pad | Unpad | Store


class Tape:
    """All that a backward pass reads of a run."""

    def __init__(self, entries: list[Entry] | None = None) -> None:
        #: What was carried out, with strips as they are.
        self.parts: list[Any] = [] if entries is None else entries
        #: Whether some of it is not there one by one.
        self.is_folded = False

    @property
    def has_strips(self) -> bool:
        """Whether there are launches in it that native code has run, and nobody has asked for."""
        return self.is_folded

    @property
    def entries(self) -> list[Entry]:
        """What was carried out, one by one."""
        if self.is_folded:
            self.entries = self._unfolded()
        return self.parts

    @entries.setter
    def entries(self, entries: list[Entry]) -> None:
        self.parts, self.is_folded = entries, False

    def _unfolded(self) -> list[Entry]:
        parts = (part.pages() if isinstance(part, Strip) else [part] for part in self.parts)
        return list(chain.from_iterable(parts))

    def add(self, part: Entry | Strip) -> None:
        """One more, the last."""
        self.parts.append(part)
        self.is_folded = self.is_folded or isinstance(part, Strip)


class Taping(Runner):
    """A runner that leaves a tape; comes before another kind of runner."""

    tape: Tape
    #: The version of each uniform value when it was last used.
    versions: dict[int, int]
    #: Whether pages save rows that launches read, and nothing that is computed from them.
    saves_rows = False

    def flows(self, number: int) -> tuple[Sequence[int], Sequence[int]]:
        """The operands and results of a block that carry gradients."""
        raise NotImplementedError

    def unasked(self) -> Iterable[Span]:
        """Slots of inputs that carry no gradients, though others of their arenas may."""
        return ()

    def leading_slots(self) -> Mapping[int, int]:
        """For some arenas how many of their first slots have no part in a backward pass."""
        return {}

    def read_uniform(self, number: int) -> torch.Tensor:
        """A uniform value, unless it has been changed since."""
        values = self.uniform(number)
        if number in self.versions:
            check_version(values, self.versions[number])
        return values

    def saved_bytes(self) -> int:
        """Bytes that pages hold, each piece of memory once."""
        pages = filter(self.holds, self.tape.entries)
        storages = (values.untyped_storage() for page in pages for values in page.saved)
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def holds(self, entry: Entry) -> TypeGuard[Page]:
        """Whether saved values belong to an entry of the tape, and to nobody else."""
        return isinstance(entry, Page)

    def _launch(self, step: PreparedLaunch) -> None:
        operands, results = self.flows(step.launch.block)
        if operands and results:
            self._launch_taped(step, operands, results)
        else:
            super()._launch(step)
            self.tape.add(Page(step.launch, step.block))

    def _store(self, step: PreparedStore) -> None:
        super()._store(step)
        self.tape.add(step.store)

    def _copy(self, step: PreparedCopy) -> None:
        super()._copy(step)
        self.tape.add(step.copy)

    def _pad(self, step: PreparedPadding) -> None:
        super()._pad(step)
        self.tape.add(step.padding)

    def _launch_taped(
        self, step: PreparedLaunch, operands: Sequence[int], results: Sequence[int]
    ) -> None:
        page = Page(step.launch, step.block, operands, results, instances=step.instances)
        page.indices = step.indices
        asked = (operands, results, self.saves_rows)
        is_done = self._save_bound(step, page, asked, self.run_bound(step, asked))
        if is_done or self._run_distinct(step, page) or self._run_fused(step, page, asked):
            self.tape.add(page)
            return
        arguments = step.arguments(self)
        try:
            if isinstance(step.block, OpaqueBlock):
                made = self._run_opaque(step.block, page, arguments)
            else:
                made = self._run_halved(step, page, arguments)
        except Exception as error:
            self.name_launch(error, step, arguments)
            raise
        self.check(step, arguments, made)
        step.store(self, made)
        self.tape.add(page)

    def _run_distinct(self, step: PreparedLaunch, page: Page) -> bool:
        """Do the launch for distinct rows, if some are the same."""
        rows = find_distinct(self, step)
        if rows is None:
            return False
        asked = (page.operands, page.results, self.saves_rows)
        form, sizes = self._training_form(step, asked, rows.arguments)
        if not isinstance(form, TrainingForm) or sizes:
            return False
        count, saved = form.output_count, len(form.saved)
        made = run_distinct(step.block, "forward", form.forward, rows, count + saved)
        if made is None:
            return False
        results, is_own = made
        hand_out(self, step, rows, results[:count])
        page.form, page.distinct = form, (rows.which, rows.count)
        page.save(results[count:], is_own=is_own)
        return True

    def _run_fused(self, step: PreparedLaunch, page: Page, asked: Asked) -> bool:
        """Do the whole launch compiled, if the block is worth it by now."""
        if not step.block.is_hot("forward", page.rows) or self.checks_nan:
            return False
        fused = step.fused_for(self, asked, lambda run: self._bind(step, asked))
        return self._save_bound(step, page, asked, None if fused is None else fused.run(self))

    def _save_bound(
        self,
        step: PreparedLaunch,
        page: Page,
        asked: Asked,
        saved: Sequence[torch.Tensor] | None,
    ) -> bool:
        """Keep what a launch gives that was bound; False where it has given nothing."""
        fused = step.fused.get(asked)
        if fused is None or saved is None:
            return False
        page.form, page.sizes = step.training[asked]
        page.is_apart = True
        if asked in step.lent:
            page.save(step.lent[asked].join(self, saved))
        else:
            page.save(saved, is_own=fused.form.gives_own)
        return True

    def _bind_ahead(self, step: PreparedLaunch) -> None:
        operands, results = self.flows(step.launch.block)
        if not operands or not results:
            super()._bind_ahead(step)
        elif step.block.is_hot("forward"):
            asked = (operands, results, self.saves_rows)
            step.fused_for(self, asked, lambda run: self._bind(step, asked))

    def half_of(self, number: int) -> tuple[BatchFunction, str, int] | None:
        """The forward half of a block where gradients are asked for."""
        operands, results = self.flows(number)
        if not operands or not results:
            return super().half_of(number)
        form = self.whole_form(number) if self.blocks[number].is_uniform else None
        return None if form is None else (form.forward, "forward", len(form.saved))

    def whole_form(self, number: int) -> TrainingForm | None:
        """The form of a block that is launched whole, for what carries gradients."""
        block = self.blocks[number]
        if block.plain_function() is None:
            return None
        flows = self.flows(number)
        form = training_form(block, (), *flows, saves_rows=self.saves_rows)
        return form if isinstance(form, TrainingForm) else None

    def straight_launch(self, step: Prepared) -> tuple[FusedLaunch, Note | None] | None:
        """A launch as it was run compiled, which leaves a page."""
        if not isinstance(step, PreparedLaunch):
            return None
        operands, results = self.flows(step.launch.block)
        if not operands or not results:
            found = super().straight_launch(step)
            return None if found is None else (found[0], _noted(Page, step))
        asked = (operands, results, self.saves_rows)
        fused = step.fused.get(asked)
        if fused is None or asked in step.lent or self.may_share(step):
            return None
        form, sizes = step.training[asked]
        new_page = partial(
            Page,
            operands=operands,
            results=results,
            form=form,
            sizes=sizes,
            instances=step.instances,
            indices=step.indices,
            is_apart=True,
        )
        return fused, _noted(new_page, step, is_own=fused.form.gives_own)

    def compiled_form(self, step: PreparedLaunch) -> FusedForm | None:
        """The same for what is asked for here."""
        operands, results = self.flows(step.launch.block)
        if not operands or not results:
            return super().compiled_form(step)
        asked = (operands, results, self.saves_rows)
        fused = step.fused.get(asked)
        return None if fused is None or asked in step.lent else fused.form

    def _bind(self, step: PreparedLaunch, asked: Asked) -> FusedLaunch | None:
        if step.block.plain_function() is None:
            return None
        form, _ = self._training_form(step, asked, ())
        if not isinstance(form, TrainingForm):
            return None
        forward, saved, block = form.forward, len(form.saved), step.block
        if form.saves_rows:
            lent = step.lent[asked] = find_lent(self, step, form)
            forward, saved = form.forward_giving(lent.given), len(lent.given)
        return bind_launch(self, step.launch, block, forward, "forward", step.indices, saved)

    def _run_opaque(
        self, block: OpaqueBlock, page: Page, arguments: list[torch.Tensor | int]
    ) -> Sequence[torch.Tensor]:
        """Run a block as it is, and keep what torch's autograd records."""
        arguments[:] = [
            self._owned(item) if isinstance(item, torch.Tensor) else item for item in arguments
        ]
        made, page.graph = launch_kept(block, page.rows, arguments, page.operands)
        return made

    def _run_halved(
        self, step: PreparedLaunch, page: Page, arguments: Sequence[torch.Tensor | int]
    ) -> Sequence[torch.Tensor]:
        """Run the forward half of a block, and save what its backward half needs."""
        asked = (page.operands, page.results, self.saves_rows)
        form, page.sizes = self._training_form(step, asked, arguments)
        page.form = form
        tensors = [item for item in arguments if isinstance(item, torch.Tensor)]
        return self._run_form(form, page, tensors)

    def _run_form(
        self, form: Form, page: Page, tensors: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """The results of a block; the page saves what is given behind them."""
        outputs = form.forward(page.rows, *tensors, *page.sizes)
        page.save([self._owned(values) for values in outputs[form.output_count :]])
        made: Sequence[torch.Tensor] = outputs[: form.output_count]
        return made

    def _training_form(
        self,
        step: PreparedLaunch,
        asked: Asked,
        arguments: Sequence[torch.Tensor | int],
    ) -> tuple[Form, tuple[int, ...]]:
        """The form of the block for the operands and results that carry gradients, and the dynamic
        sizes that it takes.
        """
        if asked not in step.training:
            operands, results, saves_rows = asked
            form = training_form(step.block, arguments, operands, results, saves_rows=saves_rows)
            step.training[asked] = form, form.sizes(arguments)
        known: tuple[Form, tuple[int, ...]] = step.training[asked]
        return known

    def _owned(self, values: torch.Tensor) -> torch.Tensor:
        """The values in memory that nobody writes to."""
        place = values.untyped_storage().data_ptr()
        is_view = any(place in arena.recycled for arena in self.arenas)
        return values.clone() if is_view else values


def _noted(new_page: Callable[..., Page], step: PreparedLaunch, *, is_own: bool = False) -> Note:
    """Leaves a page with what a launch has given."""
    launch, block = step.launch, step.block

    def note(run: Runner, saved: Sequence[torch.Tensor]) -> None:
        page = new_page(launch, block)
        page.save(saved, is_own=is_own)
        run.tape.add(page)  # type: ignore[attr-defined]

    return note
