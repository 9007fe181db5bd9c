"""Runs whose saved values stay inside bounds: pages leave memory and come back, or are made again.

The strategies of `strategies` decide what becomes of pages; `runs` asks them after every step,
`reversal` on the way back.
"""
