"""A worker's shard, from the command line or from a scheduler's variables."""

import pytest

from nmt_cli.system.errors import UsageError
from nmt_cli.system.shard import Shard, parse


@pytest.mark.parametrize(
    ("text", "variables", "shard"),
    [
        ("3/8", {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (3, 8)),
        ("auto", {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "8"}, (5, 8)),
        ("auto", {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_COUNT": "8"}, (1, 8)),
        ("auto", {"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, (4, 4)),
        (
            "auto",
            {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "3",
             "SLURM_PROCID": "1", "SLURM_NTASKS": "4"},
            (6, 12),
        ),
        ("auto/100", {"JOB_COMPLETION_INDEX": "99"}, (100, 100)),
        ("auto/5", {"PBS_ARRAY_INDEX": "7"}, (3, 5)),
        ("auto", {"CLOUD_RUN_TASK_INDEX": "0", "CLOUD_RUN_TASK_COUNT": "3"}, (1, 3)),
        ("auto", {"SGE_TASK_ID": "undefined", "RANK": "1", "WORLD_SIZE": "2"}, (2, 2)),
        ("auto/4", {"RANK": "2", "WORLD_SIZE": "3"}, (3, 4)),
    ],
)  # fmt: skip
def test_a_shard_is_read_from_the_option_or_the_scheduler(
    text: str, variables: dict[str, str], shard: tuple[int, int]
) -> None:
    assert parse(text, variables) == shard


def test_each_task_of_an_array_gets_its_own_shard() -> None:
    """This holds for any first index of the array."""
    found = {parse("auto/5", {"PBS_ARRAY_INDEX": str(number)}).number for number in range(3, 8)}
    assert found == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("text", "variables", "message"),
    [
        ("0/3", {}, "must be from 1 to 3"),
        ("4/3", {}, "must be from 1 to 3"),
        ("1/0", {}, "must be from 1 to 0"),
        ("3", {}, "must be I/N, auto or auto/N"),
        ("auto/0", {}, "must be I/N"),
        ("auto", {}, "needs the variables of a scheduler"),
        ("auto", {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, "needs the variables of a scheduler"),
        ("auto", {"JOB_COMPLETION_INDEX": "3"}, "the number of tasks N is not. Pass --shard auto/N"),
    ],
)
def test_a_wrong_shard_is_refused(text: str, variables: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(text, variables)


@pytest.mark.parametrize(("total", "count"), [(10, 3), (2, 5), (0, 4), (12, 4)])
def test_shares_cover_all_units(total: int, count: int) -> None:
    shards = [Shard(index, count) for index in range(1, count + 1)]
    units = [number for shard in shards for number in range(shard.start(total), shard.end(total))]
    assert units == list(range(total))
    assert max(shard.end(total) - shard.start(total) for shard in shards) <= total // count + 1
