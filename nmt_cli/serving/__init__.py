"""An HTTP server that speaks the protocols of LibreTranslate and DeepL.

A request passes these modules in order: `server.py` opens the port; `connections.py` limits connections and what each
may send; `app.py` is the Starlette application, which checks access (`origins.py`), applies the deadline and writes the
log. A route (in `libretranslate.py`, `files.py`, `deepl.py` or `sentences.py`) reads the request's fields (`fields.py`)
and calls `Service.translate` (`service.py`). `texts.py` cuts texts into units, `pool.py` translates them, and
`texts.py` puts the results together again. `work.py` runs long work outside the event loop.

Only this package imports Starlette and uvicorn, which the extra `serve` installs.
"""
