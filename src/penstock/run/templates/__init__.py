"""Fresh plans as CUDA graphs: a template is captured once, and plans that fit are poured into it.

A template has a stage for each launch, with room for more rows than most plans have. Rows that are
left over read one slot that is nobody's and write to another, so they change nothing.
"""
