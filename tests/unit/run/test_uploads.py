"""Values that a device reads later are not the caller's pinned memory."""

import torch

from penstock.run.uploads import unchanging


def test_pageable_memory_is_uploaded_as_it_is():
    values = torch.ones(3)
    assert unchanging(values) is values


def test_pinned_memory_is_copied_first(monkeypatch):
    values = torch.arange(3.0)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: self is values)
    plain = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda like, pin_memory: plain(like))
    found = unchanging(values)
    assert found.data_ptr() != values.data_ptr()
    assert found.tolist() == [0, 1, 2]
