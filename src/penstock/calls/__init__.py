"""Torch calls by name, made on real tensors; structures of tensors taken apart and put together."""
