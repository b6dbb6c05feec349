"""Helper threads share the products of a search: results keep their bits, and the threads end with their team."""

import gc
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from searching import engine_model, model_of, options, sources_of
from texts import ROOT

from nmt_cli.engine.model import Model
from nmt_cli.engine.team import Team
from nmt_cli.translation.engine_backend import EngineSearch, search
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.queue import SegmentQueue
from nmt_cli.translation.segments import Hypothesis, Segment
from nmt_cli.translation.shortlist import Shortlist

# So large that threads share the products of the feed-forward and output layers, but not the other products.
LARGE: dict[str, Any] = {"vocabulary": 3000, "d_model": 72, "d_ff": 2100, "max_length": 24}


def helpers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("helper ")}


def searched(
    models: Sequence[Model], sources: Sequence[list[int]], chosen: SearchOptions, team: Team | None
) -> list[list[Hypothesis]]:
    segments = [Segment(ids, chosen, max_tokens=18) for ids in sources]
    search = EngineSearch(models, len(segments), team)
    search.enter(segments)
    while search.segments:
        search.run(8)
    return [segment.hypotheses for segment in segments]


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("shape", [{}, {"decoder_cell": "ssru", "norm": "pre", "d_model": 264}])
def test_helpers_change_no_bit(shape: dict[str, Any], int8: bool) -> None:
    models = [engine_model(model_of(seed, eos=1.5, **{**LARGE, **shape}), int8=int8) for seed in (1, 2)]
    shortlist = Shortlist([3, 2999], [0, 0, *[1300] * 2998], range(7, 2607, 2))  # only the list of EOS is not empty
    teams = [Team(models[0].library, threads) for threads in (2, 5)]
    for members, count, chosen in (
        (models[:1], 1, options(4)),
        (models[:1], 9, options(1, alignments=True)),
        (models[:1], 5, options(6, n_best=3, shortlist=shortlist)),
        (models, 1, options(3)),
    ):
        sources = sources_of(count, 5, 3000, 20)
        alone = searched(members, sources, chosen, None)
        for team in teams:
            assert searched(members, sources, chosen, team) == alone
    while not all(team.helped for team in teams):  # the helpers may have been slow to start
        for team in teams:
            searched(models, sources, chosen, team)


def test_helpers_leave_a_search_with_several_sentences_alone() -> None:
    """Helpers would take the cores that other searches need."""
    model = engine_model(model_of(1, eos=1.5, **LARGE), int8=True)
    team = Team(model.library, 2)
    search = EngineSearch([model], 2, team)
    search.enter([Segment(ids, options(4), max_tokens=18) for ids in sources_of(2, 5, 3000, 20)])
    while len(search.segments) == 2:
        search.run(1)
    assert team.helped == 0


class Expecting(Team):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.expected = 0

    def expect_search(self) -> None:
        self.expected += 1
        super().expect_search()


@pytest.mark.parametrize("count", [1, 2])
def test_helpers_leave_a_core_to_the_segment_that_another_thread_takes(count: int) -> None:
    model = engine_model(model_of(1, eos=1.5, **LARGE), int8=True)
    team = Expecting(model.library, 2)
    done = list[Segment]()
    queue = SegmentQueue([partial(search, [model], team=team)] * 2, done.append)
    queue.submit([Segment(ids, options(4), max_tokens=18) for ids in sources_of(count, 5, 3000, 20)])
    queue.wait_for(lambda: len(done) == count)
    queue.close()
    assert (team.expected > 0) == (count == 2)


@pytest.mark.parametrize("size", [3, 7])
def test_several_threads_share_one_team(size: int) -> None:
    """Only one thread at a time gets helpers. A team of three has none to spare while four threads search."""
    model = engine_model(model_of(3, eos=1.5, **LARGE), int8=True)
    team, sources = Team(model.library, size), sources_of(12, 6, 3000, 20)
    expected = [searched([model], [ids], options(4), None) for ids in sources]
    found: list[Any] = [None] * 12

    def work(first: int) -> None:
        for i in range(first, 12, 4):
            found[i] = searched([model], [sources[i]], options(4), team)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_helpers_end_with_their_team() -> None:
    model, before = engine_model(model_of(1, **LARGE)), helpers()
    for use in (False, True):
        team = Team(model.library, 4)
        mine = helpers() - before
        assert len(mine) == 3
        if use:
            searched([model], [[5, 6, 2]], options(4), team)
        del team
        gc.collect()
        for thread in mine:
            thread.join(30)
            assert not thread.is_alive()


# Shares two jobs in turn until helpers have computed 100,000 parts. This fails if a helper takes a part of the new job
# while it still sees the old job, because it then computes a part of the old one. Then two owners share jobs at once.
JOBS = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif
#define EXPORT(name) name
typedef struct Team Team;
static void *allocate(size_t size) { return calloc(1, size); }
static void release(void *memory) { free(memory); }
static void begin_tiles(void) {}
static void end_tiles(void) {}
#include "team.c"
enum { PARTS = 16 };
typedef struct { int64_t number, results[PARTS]; } Job;
static void compute(const void *job, int64_t part) {
    Job *one = (Job *)job;
    one->results[part] += one->number * (part + 1);
}
static void *as_helper(void *team) { return help(team, 0), NULL; }
static void *as_second_helper(void *team) { return help(team, 1), NULL; }
static int is_shared(Team *team, Job *jobs, int64_t number) {
    Job *job = &jobs[number % 2];
    *job = (Job){number, {0}};
    share(team, compute, job, PARTS);
    for (int64_t part = 0; part < PARTS; part++)
        if (job->results[part] != number * (part + 1)) return 0;
    return 1;
}
static int share_jobs(Team *team, int64_t count) {
    Job jobs[2];
    for (int64_t i = 1; i <= count; i++)
        if (!is_shared(team, jobs, i)) return 1;
    return 0;
}
static void *as_owner(void *team) { return share_jobs(team, 100000) ? team : NULL; }
static int two_owners(void) {  // they share jobs at the same time, and one of them has the helpers
    Team *team = team_new(3);
    pthread_t helpers[2], owner;
    void *failed = NULL;
    pthread_create(&helpers[0], 0, as_helper, team);
    pthread_create(&helpers[1], 0, as_second_helper, team);
    pthread_create(&owner, 0, as_owner, team);
    const int also_failed = share_jobs(team, 100000);
    pthread_join(owner, &failed);
    team_close(team);
    for (int i = 0; i < 2; i++) pthread_join(helpers[i], 0);
    return failed || also_failed;
}
int main(void) {
    static Job jobs[2];
    Team *team = team_new(2);
    pthread_t thread;
    pthread_create(&thread, 0, as_helper, team);
    begin_work(team);
    for (int64_t i = 1; helped(team) < 100000; i++)
        if (!is_shared(team, jobs, i)) return puts("a part was not computed, or was computed twice"), 1;
    for (int i = 0, quiet = 0; quiet < 10; i++) {  // the parts are so short that the owner often ends in time
        const int64_t start = nanoseconds(), before = helped(team);
        expect_search(team);
        for (int j = 0; j < 100; j++) share(team, compute, &jobs[0], PARTS);
        if (nanoseconds() >= start + QUIET) continue;
        quiet++;
        if (helped(team) > before) return puts("a helper did not leave its core to another search"), 1;
    }
    end_work(team);
    team_close(team);
    pthread_join(thread, 0);
    return two_owners() ? puts("two owners mix their jobs"), 1 : 0;
}
"""


def test_jobs_are_computed_once_and_never_mixed(tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    (tmp_path / "jobs.c").write_text(JOBS)
    zig = [sys.executable, "-m", "ziglang", "cc", "-O2", f"-I{ROOT / 'nmt_cli/engine'}"]
    subprocess.run([*zig, tmp_path / "jobs.c", "-lpthread", "-o", tmp_path / "jobs"], check=True)
    done = subprocess.run([tmp_path / "jobs"], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "")
