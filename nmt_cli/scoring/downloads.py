"""Files that sacreBLEU downloads at first use: test sets and SentencePiece models."""

import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from nmt_cli.system.errors import TERMINATED, DownloadError

T = TypeVar("T")
SENTENCEPIECE_TOKENIZERS = ("flores200", "flores101", "spBLEU-1K")


def fetch(get: Callable[[], T], name: str, advice: str) -> T:
    """Call `get`, a function that may download files, and return its result. Raise DownloadError if it fails.

    The error message contains `name`, the name of the files, and `advice`, a way to do without them.
    """
    logging.getLogger("sacrebleu").setLevel(logging.CRITICAL)
    socket.setdefaulttimeout(60)  # otherwise, sacreBLEU would wait forever for a silent server
    try:
        return get()
    except (Exception, SystemExit) as error:  # sacreBLEU exits, or raises errors of urllib, tarfile or a file lock
        if isinstance(error, SystemExit) and error.code == TERMINATED:
            raise
        reason = f"cannot fetch {name}: {str(error).strip()[:60]}"
        raise DownloadError(f"{reason}. Connect to a network and try again, or {advice}") from None


def fetch_tokenizer(tokenize: str) -> None:
    """Download the SentencePiece model of a tokenizer unless it is on disk.

    Raise DownloadError if the download fails or the file is damaged.
    """
    from sacrebleu.tokenizers import tokenizer_spm

    module: Any = tokenizer_spm
    url = tokenizer_spm.SPM_MODELS[tokenize]["url"]
    file = Path(module.SACREBLEU_DIR, "models", url.rpartition("/")[2])
    if not file.exists():
        fetch(
            lambda: module.download_file(url, str(file)), f"tokenizer {tokenize} from {url}", "choose another tokenizer"
        )
    try:
        module.TokenizerSPM(tokenize)
    except (OSError, RuntimeError):
        raise DownloadError(f"{file} is damaged. Remove it, and run the command again to download it") from None
