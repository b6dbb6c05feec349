"""The checks of `same_results.py`: each measures one source tree through its command line, HTTP or `Translator`."""
