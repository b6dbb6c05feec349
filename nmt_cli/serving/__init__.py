"""An HTTP server that speaks the protocols of LibreTranslate and DeepL.

A request passes through these modules in order. `server.py` opens the port. `connections.py` limits the number of
connections and the size of requests. `app.py` is the Starlette application, which checks access (`origins.py`), applies
the deadline (`deadline.py`) and writes the log. A route (in `libretranslate.py`, `files.py`, `deepl.py`,
`deepl_glossaries.py`, `deepl_documents.py`, `suggestions.py` or `sentences.py`) reads the request's fields
(`fields.py`) and calls `Service.translate` (`service.py`). `texts.py` cuts texts into units, such as lines.
`model_routes.py` knows which models translate a language pair, directly or through another language. `route_runner.py`
passes the units through these models, and `texts.py` joins the translations. `pool.py` queues and translates the units,
and refuses a request if too many texts are waiting.

`on_demand.py` loads models when requests need them, and unloads idle models. `work.py` runs long tasks and database
queries outside the event loop. The database (`database.py`) is SQLite (`sqlite_connection.py`) or PostgreSQL
(`postgres_connection.py`). It stores glossaries (`glossaries.py`) and API keys (`key_store.py`). API keys may also be
in a file (`keys.py`).

Only this package imports Starlette and uvicorn, which the extra `serve` installs.
"""
