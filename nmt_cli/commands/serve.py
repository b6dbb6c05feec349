"""The command `nmt serve`."""

from pathlib import Path
from typing import Annotated

import typer

from nmt_cli.commands.options import (
    DATABASE,
    DATABASE_VARIABLE,
    PRECISION,
    Keep,
    Precision,
    Protect,
    Quiet,
    file_option,
    number_option,
    option,
)
from nmt_cli.system.errors import UsageError


def serve(
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Models, one per language pair, as for nmt translate --model; or directories of models to load when "
            "needed",
            show_default="$NMT_MODEL, else the newest under runs/",
        ),
    ] = None,
    host: Annotated[str, option("Address to listen on; a public one requires API keys", kind="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, number_option("TCP port", min=0, max=65535)] = 5000,
    api_key_file: Annotated[Path | None, file_option("Accepted API keys, one per line")] = None,
    database: Annotated[
        str | None,
        typer.Option(
            help=DATABASE, metavar="FILE", envvar=DATABASE_VARIABLE, show_default="$NMT_DATABASE, else memory"
        ),
    ] = None,
    suggestions: Annotated[
        Path | None, file_option("File to which clients may add better translations", default="refuse them")
    ] = None,
    workers: Annotated[int | None, number_option("Threads per model", default="one per core", min=1)] = None,
    precision: Annotated[Precision, option(PRECISION)] = "auto",
    char_limit: Annotated[int, number_option("Maximum characters per request", min=1)] = 100_000,
    batch_limit: Annotated[int, number_option("Maximum texts per request", min=1)] = 1000,
    queue: Annotated[int, number_option("Maximum texts in progress; further requests get status 429", min=1)] = 5000,
    timeout: Annotated[float, number_option("Maximum seconds per request", min=0.1)] = 60,
    cors: Annotated[
        list[str] | None,
        option("Web origin allowed to send requests; * for all; repeatable", kind="ORIGIN", default="none"),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        option("Host name accepted in requests; * for any; repeatable", kind="NAME", default="--host"),
    ] = None,
    connections: Annotated[
        int | None, number_option("Maximum open connections", min=1, default="512, if ulimit -n allows")
    ] = None,
    idle: Annotated[
        float, number_option("Seconds without requests before a model from a directory is unloaded", min=0)
    ] = 3600,
    memory: Annotated[
        int | None, number_option("Unload idle models from directories while the server exceeds N megabytes", min=1)
    ] = None,
    pivot: Annotated[
        bool, option("Translate through a third language if no model has the language pair", "--pivot/--no-pivot")
    ] = True,
    zero_shot: Annotated[
        bool, option("Also offer language pairs that a multilingual model was not trained to translate", "--zero-shot")
    ] = False,
    protect: Protect = None,
    keep: Keep = None,
    quiet: Quiet = False,
) -> int:
    """Serve translations over HTTP, with the APIs of LibreTranslate and DeepL.

    On SIGTERM the server finishes pending requests and accepts no new ones.
    """
    try:
        from nmt_cli.serving import server
    except ModuleNotFoundError as error:
        raise UsageError(f'the package {error.name} is missing. Install it: pip install "nmt-cli[serve]"') from None
    from nmt_cli.interop.model_kinds import named_and_found
    from nmt_cli.interop.named_models import model_directories
    from nmt_cli.translation.translate import choose_models

    named, stored = named_and_found(choose_models(model_directories(models or [])))
    options = server.ServeOptions(
        models=named,
        stored=stored,
        idle=idle,
        memory=memory,
        pivot=pivot,
        zero_shot=zero_shot,
        database=database,
        suggestions=suggestions,
        host=host,
        port=port,
        api_key_file=api_key_file,
        workers=workers,
        precision=precision,
        char_limit=char_limit,
        batch_limit=batch_limit,
        queue=queue,
        timeout=timeout,
        cors=tuple(filter(None, cors or ())),  # --cors "" allows no origin
        protect=protect,
        keep=keep,
        allow_host=tuple(allow_host or ()),
        connections=connections,
    )
    return server.serve(options)
