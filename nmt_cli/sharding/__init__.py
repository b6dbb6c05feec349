"""Work that many machines share: files of lines in units, each of which appears once, complete or not at all.

`inputs.py` finds files, `units.py` cuts them, `job.py` describes the work and its finished units on disk (`store.py`),
`worker.py` does one worker's part, and `proof.py` checks and joins the result. No process coordinates the others.
"""
