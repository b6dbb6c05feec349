"""A pipeline step for datatrove, which runs pipelines on one machine, under Slurm or on Ray.

The step requires nmt's extra `datatrove`. For an example, see recipes/cluster/datatrove_translate.py.
"""

from collections.abc import Sequence
from typing import Any

from datatrove.pipeline.base import PipelineStep

from nmt_cli.sharding import inputs
from nmt_cli.system.errors import NmtError
from nmt_cli.system.shard import Shard
from nmt_cli.translation.sharded import ShardedTranslation
from nmt_cli.translation.translate import TranslateOptions


class TranslateFiles(PipelineStep):  # type: ignore[misc]  # datatrove may not be installed
    """Translates files in units, which are ranges of lines.

    Task R of W (R counts from 0) does the work of `nmt translate --shard (R+1)/W`.

    `files` are files, directories, patterns or URLs. `output` is a directory or a URL for the units. `unit_lines` is
    the maximum number of lines per unit. If a unit fails, the task translates the other units, then raises NmtError.
    When all tasks have ended, call `check` and `join` of `translation.sharded`.
    """

    name = "nmt: translate files"
    type = "TRANSLATE"

    def __init__(
        self, files: Sequence[str], output: str, options: TranslateOptions, unit_lines: int | None = None
    ) -> None:
        super().__init__()
        self.files = files
        self.output = output
        self.options = options
        self.unit_lines = unit_lines

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Any:
        """Translate the units of this task, and then unfinished units of other tasks. Return `data` unchanged."""
        with ShardedTranslation(
            inputs.find(self.files), self.output, self.options, unit_lines=self.unit_lines
        ) as translation:
            code = translation.run(Shard(rank + 1, world_size))
        if code:
            raise NmtError(f"a unit failed with code {code}. For the reason, see {self.output}/units/*.failed")
        return data
