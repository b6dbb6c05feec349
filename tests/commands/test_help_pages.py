"""The option lines of help pages, and the list of recipes on a narrow terminal."""

import sys

import pytest
from command_line import Nmt

from nmt_cli.commands.recipes import list_recipes

LINES = {
    "translate": """
Usage: nmt translate [OPTIONS] [FILE...]
  FILE                      Input file; with --shard, files, directories, patterns and URLs
  -o, --output FILE         Output file, kept only if complete [default: stdout]
      --precision NAME      Numeric precision; auto picks int8 on CPUs with fast int8 instructions
      --strict              Fail on input that is not UTF-8
      --beam N              Beam size; 1 is greedy search [default: the recipe's]
      --alpha N             Length penalty [0 to 10; default: the recipe's]
      --[no-]copy-wordless  Copy lines without letters, such as 3.14 [default: the recipe's]
      --temperature N       Below 1 favors likely subwords [0.01 or more; default: 1]
      --seed N              Random seed [default: 1]
      --protect-pattern REGEX
      --line-length N       Maximum characters per subtitle line [10 or more; default: 42]
""",
    "score": """
Usage: nmt score [OPTIONS] [HYPOTHESIS]
      --lowercase           Ignore case
      --[no-]intervals      95% confidence intervals [default: on]
  -r, --reference FILE      Reference translations; repeatable
      --split NAME          Split of --corpus [dev, test, general; default: test]
""",
    "export": """
Usage: nmt export [OPTIONS] MODEL
      --to NAME            Target toolkit; hf is transformers [hf, ctranslate2, argos; required]
      --out DIR            Output directory; for argos a file NAME.argosmodel [required]
""",
    "serve": """
Usage: nmt serve [OPTIONS] [MODELS...]
      --port N             TCP port [0 to 65535; default: 5000]
      --timeout N          Maximum seconds per request [0.1 or more; default: 60]
""",
    "attend": "Usage: nmt attend [OPTIONS] TEXT...",
    "shortlist": "      --frequent N  Number of frequent target subwords allowed in every line [default: 500]",
}


@pytest.mark.parametrize("command", [*LINES])
def test_a_line_shows_names_choices_ranges_and_defaults(nmt: Nmt, command: str) -> None:
    code, text, err = nmt(command, "--help")
    assert (code, err) == (0, "")
    shown = text.split("\n")
    assert [line for line in LINES[command].strip("\n").split("\n") if line not in shown] == []


def test_sections_of_a_page_are_in_order(nmt: Nmt) -> None:
    for words, expected in (
        (["translate"], ["Arguments", "Options", "Search", "Sampling", "Output", "Many machines"]),
        (["recipes"], ["Options", "Commands"]),
    ):
        titles = [line[:-1] for line in nmt(*words, "--help")[1].split("\n") if line[:1] != " " and line.endswith(":")]
        assert titles == expected


def test_recipes_are_listed_in_a_very_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for columns, wide in ((10, 20), (50, 29)):  # names take 21 columns, descriptions at least 20
        monkeypatch.setenv("COLUMNS", str(columns))
        list_recipes()
        texts = [line[21:] for line in capsys.readouterr().out.split("\n")[:-1]]
        assert wide - 5 < max(map(len, texts)) <= wide
        assert "Back-translation: " in " ".join(texts)
