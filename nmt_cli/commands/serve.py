"""The command `nmt serve`."""

from pathlib import Path
from typing import Annotated

import typer

from nmt_cli.commands.options import Precision, Protect, Quiet, file_option, number_option, option
from nmt_cli.system.errors import UsageError


def serve(
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Models, one for each pair of languages; or OWNER/NAME of the hub",
            show_default="$NMT_MODEL, else the newest",
        ),
    ] = None,
    host: Annotated[str, option("Address; one that others reach needs --api-key-file", kind="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, number_option("TCP port", min=0, max=65535)] = 5000,
    api_key_file: Annotated[Path | None, file_option("Answer only to these keys, one a line")] = None,
    workers: Annotated[int | None, number_option("Threads of each model", default="one per core", min=1)] = None,
    precision: Annotated[Precision, option("Arithmetic; auto: int8 on CPUs made for it")] = "auto",
    char_limit: Annotated[int, number_option("Characters of a request", min=1)] = 100_000,
    batch_limit: Annotated[int, number_option("Texts of a request", min=1)] = 1000,
    queue: Annotated[int, number_option("Texts in hand; beyond: 429", min=1)] = 5000,
    timeout: Annotated[float, number_option("Seconds for a request", min=0.1)] = 60,
    cors: Annotated[
        list[str] | None,
        option("Pages of this site or browser extension may ask; * for all; repeatable", kind="ORIGIN", default="none"),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        option("A name by which clients reach the server; * for any; repeatable", kind="NAME", default="--host"),
    ] = None,
    connections: Annotated[
        int | None, number_option("Connections at once", min=1, default="512, if ulimit -n allows")
    ] = None,
    protect: Protect = None,
    quiet: Quiet = False,
) -> int:
    """Answer translation requests over HTTP, as LibreTranslate and DeepL do.

    SIGTERM: what has been asked is answered, nothing new is taken. Glossaries are in memory and end with it.
    """
    try:
        from nmt_cli.serving import server
    except ModuleNotFoundError as error:
        raise UsageError(f'this needs the package {error.name}. Install it: pip install "nmt-cli[serve]"') from None
    from nmt_cli.interop.named_models import model_directories
    from nmt_cli.translation.translate import choose_models

    return server.serve(
        server.ServeOptions(
            choose_models(model_directories(models or [])),
            host=host,
            port=port,
            api_key_file=api_key_file,
            workers=workers,
            precision=precision,
            char_limit=char_limit,
            batch_limit=batch_limit,
            queue=queue,
            timeout=timeout,
            cors=tuple(filter(None, cors or ())),  # '' means none, as before
            protect=protect,
            allow_host=tuple(allow_host or ()),
            connections=connections,
        )
    )
