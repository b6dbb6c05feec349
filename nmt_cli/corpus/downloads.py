"""Retry downloads."""

import errno
import http.client
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
PAUSES = (1, 4)  # seconds between the three tries


def with_retries(download: Callable[[], Result]) -> Result:
    """Return the result of `download`. Call it up to three times if it raises OSError or HTTPException.

    Raises the error of the last call. The HTTP errors 401, 403, 404 and 410 and a full disk are not retried.
    """
    for pause in PAUSES:
        try:
            return download()
        except (OSError, http.client.HTTPException) as error:
            if getattr(error, "code", 0) in (401, 403, 404, 410) or getattr(error, "errno", 0) == errno.ENOSPC:
                raise
        time.sleep(pause)
    return download()
