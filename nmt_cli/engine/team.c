// Helper threads that share large products with the threads that search. engine.c includes this file.
//
// A job has parts that any thread may compute. Its owner, the thread that shares it, takes parts from the front.
// Helpers take parts from the back. So a core tends to get the same parts of successive jobs, and its cache may still
// hold their weights. Helpers sleep if there is no job for a while. At most `threads` threads compute at once: one
// helper may work for each thread that has no sentences to search.
#include <pthread.h>
#include <sched.h>
#include <time.h>

typedef void Part(const void *job, int64_t part);

struct Team {
    int64_t threads, searching;  // maximum number of threads at once; number of searches that have sentences
    uint64_t left;  // the parts not taken yet: lower 32 bits, the first; upper 32 bits, the end (exclusive)
    int64_t alone;  // number of jobs that owners will compute alone, because other processes use the helpers' cores
    int64_t quiet_until;  // time until which owners compute alone, because another search has ended or will begin
    int64_t helped;  // parts of all jobs that helpers have computed
    Part *function;
    const void *job;
    int owned, closed;  // whether a thread is sharing a job; whether the team is closed
    int64_t sleeping, users;  // users: threads in `help`, and the creator of the team; the last to leave frees it
    pthread_mutex_t mutex;
    pthread_cond_t wake;
};

enum { SPINS = 4000 };  // how often a helper looks for a part before it sleeps, about 0.1 ms
enum { PATIENCE = 100000 };  // nanoseconds; helpers are late after this plus twice the time of the owner's own parts
enum { QUIET = 1000000 };  // nanoseconds that a thread may need to handle a search's results or to begin a search
enum { ALONE = 1000 };  // jobs that owners compute alone after a helper was late

#define GET(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define SET(x, y) __atomic_store_n(&(x), y, __ATOMIC_SEQ_CST)
#define ADD(x, y) __atomic_add_fetch(&(x), y, __ATOMIC_SEQ_CST)

static int64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

static void pause_briefly(void) {
#ifdef __x86_64__
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Take the first or the last of the parts that are left, and return its number. Returns -1 if none is left.
static int64_t take_part(Team *team, int last) {
    uint64_t left = GET(team->left);
    for (;;) {
        const uint64_t first = left & 0xffffffff, end = left >> 32;
        if (first >= end) return -1;
        const uint64_t rest = last ? first | (end - 1) << 32 : (first + 1) | end << 32;
        if (__atomic_compare_exchange_n(&team->left, &left, rest, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return (int64_t)(last ? end - 1 : first);
    }
}

// Return the number of helpers that may work now.
static int64_t helpers_of(Team *team) { return team ? team->threads - GET(team->searching) : 0; }

// Return the number of helpers that a new job may have.
static int64_t helpers_for_job(Team *team) {
    const int64_t helpers = helpers_of(team);
    return helpers > 0 && nanoseconds() > GET(team->quiet_until) ? helpers : 0;
}

static int has_part(Team *team) {
    const uint64_t left = GET(team->left);
    return (left & 0xffffffff) < left >> 32;
}

// Compute all parts of a job, with helpers if any may work. Returns when all parts are done.
static void share(Team *team, Part *function, const void *job, int64_t parts) {
    const int64_t helpers = helpers_for_job(team);
    const int alone = helpers > 0 && GET(team->alone) > 0 && ADD(team->alone, -1) >= 0;
    if (helpers <= 0 || alone || __atomic_exchange_n(&team->owned, 1, __ATOMIC_SEQ_CST)) {
        for (int64_t part = 0; part < parts; part++) function(job, part);
        return;
    }
    team->function = function, team->job = job;
    const int64_t before = GET(team->helped);
    SET(team->left, (uint64_t)parts << 32);
    if (GET(team->sleeping) > team->threads - 1 - helpers) {  // one of the helpers may be asleep
        pthread_mutex_lock(&team->mutex);
        pthread_cond_broadcast(&team->wake);
        pthread_mutex_unlock(&team->mutex);
    }
    int64_t own = 0;
    const int64_t start = nanoseconds();
    for (int64_t part; (part = take_part(team, 0)) >= 0; own++) function(job, part);
    const int64_t end = nanoseconds(), limit = end + 2 * (end - start) + PATIENCE;
    while (GET(team->helped) - before < parts - own)
        if (nanoseconds() < limit) pause_briefly();
        else {
            SET(team->alone, ALONE);
            sched_yield();
        }
    SET(team->owned, 0);
}

// Count a search while it has sentences, even between calls of `run`. If helpers worked between calls, they would take
// the core that the search's thread needs for its next call.
static void begin_work(Team *team) {
    if (team) ADD(team->searching, 1);
}

// When a search ends while others run, leave its core for a moment to the threads that handle its results.
static void end_work(Team *team) {
    if (team && ADD(team->searching, -1)) SET(team->quiet_until, nanoseconds() + QUIET);
}

// Leave a core to a search that another thread is about to begin.
void EXPORT(expect_search)(Team *team) { SET(team->quiet_until, nanoseconds() + QUIET); }

// Create a team for `threads` threads that search. Returns 0 if out of memory. The caller must start the helpers.
Team *EXPORT(team_new)(int64_t threads) {
    Team *team = allocate(sizeof(Team));
    if (!team) return 0;
    team->threads = team->users = threads;  // users: the creator and `threads` - 1 helpers
    pthread_mutex_init(&team->mutex, 0);
    pthread_cond_init(&team->wake, 0);
    return team;
}

static void leave_team(Team *team) {
    if (ADD(team->users, -1)) return;
    pthread_cond_destroy(&team->wake);
    pthread_mutex_destroy(&team->mutex);
    release(team);
}

// Make the helpers return from `help`. The caller must not use the team afterwards.
void EXPORT(team_close)(Team *team) {
    SET(team->closed, 1);
    pthread_mutex_lock(&team->mutex);
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->mutex);
    leave_team(team);
}

int64_t EXPORT(helped)(Team *team) { return GET(team->helped); }

// Work as helper `number` until the team is closed. Call this once for each number from 0 to `threads` - 2.
void EXPORT(help)(Team *team, int64_t number) {
    begin_tiles();
    for (int64_t spins = 0; !GET(team->closed); spins++) {
        const int may_help = number < helpers_of(team);
        const int64_t part = may_help ? take_part(team, 1) : -1;
        if (part >= 0) {
            team->function(team->job, part);
            ADD(team->helped, 1);
            spins = 0;
        } else if (may_help && spins < SPINS)
            pause_briefly();
        else {
            end_tiles();
            pthread_mutex_lock(&team->mutex);
            ADD(team->sleeping, 1);
            while (!GET(team->closed) && !(number < helpers_of(team) && has_part(team)))
                pthread_cond_wait(&team->wake, &team->mutex);
            ADD(team->sleeping, -1);
            pthread_mutex_unlock(&team->mutex);
            begin_tiles();
            spins = 0;
        }
    }
    end_tiles();
    leave_team(team);
}
