"""Blocks that mix along dynamic dimensions, for rows of different sizes: padded, under masks.

Code of one instance is rewritten by a table of rules, one for each operator, such that padding
never reaches a valid value or its gradient. The result is an ordinary block with the lengths as
further inputs, so that batching and differentiating it need nothing of their own.
"""
