"""An HTTP server that speaks the protocols of LibreTranslate and DeepL.

A request passes these modules in order: `server.py` opens the port; `connections.py` limits connections and what each
may send; `app.py` is the Starlette application, which checks access (`origins.py`), applies the deadline and writes the
log. A route (in `libretranslate.py`, `files.py`, `deepl.py`, `deepl_glossaries.py`, `deepl_documents.py`,
`suggestions.py` or `sentences.py`) reads the request's fields (`fields.py`) and calls `Service.translate`
(`service.py`). `texts.py` cuts texts into units, `pivot.py` leads them along a route of models (`language_routes.py`),
`pool.py` translates them, and `texts.py` puts the results together again. `on_demand.py` loads models and puts them
away. `work.py` runs long work outside the event loop, and so all calls of the data base (`database.py`; in SQLite or
PostgreSQL: `sqlite_connection.py`, `postgres_connection.py`), which has glossaries (`glossaries.py`) and API keys
(`key_store.py`; `keys.py` reads those of a file).

Only this package imports Starlette and uvicorn, which the extra `serve` installs.
"""
