"""Work that many machines share: files of lines are cut into units, and a unit is complete or absent.

`inputs.py` finds files, `units.py` cuts them, `job.py` describes the work and its finished units on disk (`store.py`),
`worker.py` does one worker's part, and `proof.py` checks and joins the result. No process coordinates the others.
"""
