"""What the paper says of the models it trained on newstest2013 (its Table 3), and where a recipe departs from it."""

from typing import Any

from nmt_cli import recipe
from nmt_cli.recipe import Recipe

# row: what differs from base; perplexity, BLEU and millions of parameters ("-" where the paper leaves it out).
# Source: Table 3. Its parameters count a vocabulary of about 41,000.
TABLE_3 = """base: ; 4.92 25.8 65
A: num_heads=1 d_k=512 d_v=512; 5.29 24.9 -
A: num_heads=4 d_k=128 d_v=128; 5.00 25.5 -
A: num_heads=16 d_k=32 d_v=32; 4.91 25.8 -
A: num_heads=32 d_k=16 d_v=16; 5.01 25.4 -
B: d_k=16; 5.16 25.1 58
B: d_k=32; 5.01 25.4 60
C: num_layers=2; 6.11 23.7 36
C: num_layers=4; 5.19 25.3 50
C: num_layers=8; 4.88 25.5 80
C: d_model=256 d_k=32 d_v=32; 5.75 24.5 28
C: d_model=1024 d_k=128 d_v=128; 4.66 26.0 168
C: d_ff=1024; 5.12 25.4 53
C: d_ff=4096; 4.75 26.2 90
D: dropout=0.0; 5.77 24.6 -
D: dropout=0.2; 4.95 25.5 -
D: label_smoothing=0.0; 4.67 25.3 -
D: label_smoothing=0.2; 5.47 25.7 -
E: positions=learned; 4.92 25.7 -
big: d_model=1024 d_ff=4096 num_heads=16 dropout=0.3 steps=300000; 4.33 26.4 213"""
# Settings of which the paper does not speak: they decide how a run is computed, not what is learnt.
NOT_THE_PAPERS = (
    "max_", "log_every", "validate_", "checkpoint_every", "keep_", "patience", "memory_", "micro_", "seed", "precision",
)  # fmt: skip


def matters(change: str) -> bool:
    """Return whether a line of `recipe.differences` may change what is learnt."""
    setting = change.partition(":")[0].rpartition(".")[2]
    return setting == "seed" or not setting.startswith(NOT_THE_PAPERS)


def _of_the_paper(settings: Recipe) -> dict[str, Any]:
    """Return the settings of which the paper speaks, by section."""
    plain = recipe.to_plain(settings)
    return {
        section: {key: value for key, value in plain[section].items() if not key.startswith(NOT_THE_PAPERS)}
        for section in ("model", "training", "averaging", "decoding")
    }


def table_3(settings: Recipe) -> tuple[str, list[str]] | None:
    """Return the row of Table 3 that a recipe repeats: its name, and perplexity, BLEU and million parameters."""
    ours, base = _of_the_paper(settings), _of_the_paper(Recipe())
    for line in TABLE_3.split("\n"):
        name, _, rest = line.partition(": ")
        changes, _, figures = rest.partition(";")
        row = {**base["model"], **base["training"], **dict(change.split("=") for change in changes.split())}
        if all(str({**ours["model"], **ours["training"]}[key]) == str(value) for key, value in row.items()):
            return f"{name} {changes}".strip(), figures.split()
    return None


def models() -> dict[str, dict[str, Any]]:
    """Return the paper's two models, base and big: the settings of which it speaks, by section."""
    big = {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}
    base = _of_the_paper(Recipe())
    return {
        "base": base,
        "big": recipe.merge(base, {"model": big, "training": {"steps": 300_000}, "averaging": {"last": 20}}),
    }


def departures(settings: Recipe) -> tuple[str, list[str]]:
    """Return which of the paper's models a recipe is nearest to, and every setting that differs from it."""
    ours = _of_the_paper(settings)
    differences = [(name, recipe.differences(model, ours)) for name, model in models().items()]
    return min(differences, key=lambda pair: len(pair[1]))
