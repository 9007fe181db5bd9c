"""Streams without a device: what is asked for is done later, in any order that events allow."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from penstock.run.memory import pinned, read_ahead


class Event:
    """Has happened once its stream has come to it."""

    def __init__(self) -> None:
        self.has_happened = False

    def query(self) -> bool:
        return self.has_happened

    def synchronize(self) -> None:
        while not self.has_happened:
            Streams.now.advance()


class Stream:
    """Things to do, in order."""

    def __init__(self) -> None:
        self.work: list[Callable[[], object] | Event] = []

    def record_event(self) -> Event:
        event = Event()
        self.work.append(lambda: setattr(event, "has_happened", True))
        return event

    def wait_event(self, event: Event) -> None:
        self.work.append(event)

    def run_one(self) -> bool:
        """Do the next thing, unless it waits."""
        if not self.work:
            return False
        item = self.work[0]
        if isinstance(item, Event):
            if not item.has_happened:
                return False
            self.work.pop(0)
            return True
        self.work.pop(0)
        item()
        return True


class Streams:
    """All streams of a simulated device."""

    now: Streams

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.launches = self.current = Stream()
        self.all = [self.launches]

    def new(self, device: object = None) -> Stream:
        self.all.append(Stream())
        return self.all[-1]

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.current.work.append(lambda: target.copy_(source))

    def launch(self, work: Callable[[], object]) -> None:
        """A kernel on the stream of launches."""
        self.launches.work.append(work)

    def advance(self) -> bool:
        """Do something, on any stream that can."""
        order = self.random.sample(self.all, len(self.all))
        return any(stream.run_one() for stream in order)

    def finish(self) -> None:
        while self.advance():
            pass
        assert not any(stream.work for stream in self.all), "streams wait for each other"


@contextmanager
def simulated_streams(seed: int) -> Iterator[Streams]:
    """The streams, slab and copies of a device that is not there."""
    streams = Streams.now = Streams(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_stream", lambda device=None: streams.current)
        patch.setattr(torch.cuda, "stream", streams.on)
        patch.setattr(torch.cuda, "Stream", streams.new)
        pair = pinned.CopyStreams(streams.new(), streams.new())
        patch.setattr(pinned, "copy_streams", lambda device: pair)
        patch.setattr(pinned, "_copy", streams.copy)
        patch.setattr(pinned, "_pinned", lambda count: torch.zeros(count, dtype=torch.uint8))
        slab = pinned.Slab()
        patch.setattr(pinned, "slab_of", lambda device: slab)
        patch.setattr(pinned, "PIECE", 1024)
        uploads = streams.new()
        patch.setattr(read_ahead, "upload_stream", lambda device: uploads)
        yield streams
