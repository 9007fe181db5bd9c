"""Where saved values are until backward wants them: here, in a file or in pinned host memory.

A parcel is what one launch has saved, or the rows that a segment of launches starts from. A store
holds the parcels of one run inside a budget of bytes. Which parcels there are, and what is computed
again, is decided in `penstock.autodiff`.
"""
