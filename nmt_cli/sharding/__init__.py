"""Divide a translation among many machines. Files are cut into units of lines; a unit's result is complete or absent.

`inputs.py` finds the files, and `units.py` cuts them. `job.py` keeps the plan and the finished units in a store: a
directory (`store.py`) or an object store (`bucket.py`). `worker.py` runs a worker, and `proof.py` checks and joins the
results. No process coordinates the others.
"""
