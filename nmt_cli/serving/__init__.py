"""Translation over HTTP, as clients of LibreTranslate and DeepL already ask for it.

`server.py` opens the port, `connections.py` bounds connections and what each may send, `origins.py` decides which hosts
and pages may ask, and `keys.py` reads the API keys. They run `app.py`, a Starlette application: a list of routes. A
route's function reads a request (`fields.py`), says it in our own terms, and answers in those of its dialect
(`libretranslate.py`, `deepl.py`, and `sentences.py`, which is our own). What they share is a `Service` (`service.py`):
the models by language pair (`pool.py`), texts of all requests at once, each waiting for its own lines only; what bounds
them; and the counts (`metrics.py`). A text becomes lines or segments of markup, and is put together again, in
`texts.py`.

Starlette, uvicorn and the rest are the extra `serve`; nothing outside of this room imports them.
"""
