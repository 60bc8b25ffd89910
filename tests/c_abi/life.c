/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A host program that knows nothing but include/jobfence.h: it loads libjobfence.so and lives two
 * fences' lives, in two threads at once. It prints nothing, so that whatever is printed is the
 * library's. What is wrong is written to a file.
 *
 * Usage: life LIBRARY CONFIG REPORT
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jobfence.h"

enum { USER = 65534, ROUNDS = 3, LISTENERS = 4 };

static FILE *report;
static const char *config;
static volatile int lines;

static __typeof__(jobfence_abi_version) *abi_version;
static __typeof__(jobfence_last_error) *last_error;
static __typeof__(jobfence_free) *free_text;
static __typeof__(jobfence_set_log) *set_log;
static __typeof__(jobfence_open) *open_fence;
static __typeof__(jobfence_attach) *attach;
static __typeof__(jobfence_limit) *limit;
static __typeof__(jobfence_usage) *usage;
static __typeof__(jobfence_freeze) *freeze;
static __typeof__(jobfence_thaw) *thaw;
static __typeof__(jobfence_close) *close_fence;
static __typeof__(jobfence_reap) *reap;
static __typeof__(jobfence_total) *total;

#define CHECK(condition) \
    do { \
        if (!(condition)) \
            fprintf(report, "line %d: %s; last error: %s\n", __LINE__, #condition, last_error ? last_error() : ""); \
    } while (0)

/* What a call returns, and whether the text of the error has this part, and is empty without one. */
#define RETURNS(code, part, call) \
    do { \
        int found = (call); \
        const char *said = last_error(); \
        if (found != (code) || strstr(said, part) == NULL || (found == JOBFENCE_OK) != (said[0] == 0)) \
            fprintf(report, "line %d: %s: %d, \"%s\"\n", __LINE__, #call, found, said); \
    } while (0)

static int entries(const char *directory)
{
    int count = 0;
    DIR *dir = opendir(directory);
    while (dir != NULL && readdir(dir) != NULL)
        count++;
    if (dir != NULL)
        closedir(dir);
    return count;
}

/* Whether a file of /proc has this text. */
static int has(const char *file, const char *text)
{
    static __thread char line[65536];
    int found = 0;
    FILE *opened = fopen(file, "r");
    while (opened != NULL && fgets(line, sizeof line, opened) != NULL)
        found |= strstr(line, text) != NULL;
    if (opened != NULL)
        fclose(opened);
    return found;
}

static void note_line(int level, const char *line, void *data)
{
    struct jobfence_fence fence = {sizeof fence, "from the log", NULL, 0, 0};
    char *json;
    __sync_fetch_and_add((volatile int *)data, 1);
    if (level < JOBFENCE_LOG_ERROR || level > JOBFENCE_LOG_DEBUG || strchr(line, '\n') != NULL)
        fprintf(report, "log: %d %s\n", level, line);
    /* The library does not wait for itself. */
    usage(config, &fence, NULL, &json);
}

/* A process of this user that counts as long as it runs. */
static pid_t counting(int uid, volatile unsigned *counter)
{
    int begun[2];
    char byte;
    pid_t pid;
    CHECK(pipe(begun) == 0);
    pid = fork();
    if (pid == 0) {
        if (setgid(uid) != 0 || setuid(uid) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
            _exit(9);
        CHECK(write(begun[1], "", 1) == 1);
        close(begun[0]);
        close(begun[1]);
        for (;;) {
            (*counter)++;
            usleep(1000);
        }
    }
    /* Until then it is root's. */
    close(begun[1]);
    CHECK(read(begun[0], &byte, 1) == 1);
    close(begun[0]);
    return pid;
}

static int stands(volatile unsigned *counter)
{
    unsigned before = *counter;
    usleep(100000);
    return *counter == before;
}

/* However slow the machine is. */
static int counts(volatile unsigned *counter)
{
    unsigned before = *counter;
    for (int tenths = 0; tenths < 3000 && *counter == before; tenths++)
        usleep(100000);
    return *counter != before;
}

struct work {
    const char *job;
    pid_t child;
    pid_t roots;
    volatile unsigned *counter;
};

static void wrong_calls(const struct work *work)
{
    struct jobfence_fence fence = {sizeof fence, work->job, NULL, 0, 0};
    struct jobfence_fence wrong = fence;
    struct jobfence_grant grant;
    struct {
        struct jobfence_fence known;
        uint64_t more;
    } larger;
    char *text = (char *)1, *json = (char *)1, *path = (char *)1;
    size_t sizes[] = {0, 1, sizeof(size_t) - 1, sizeof fence - 1, (size_t)-1, (size_t)-8, 1 << 20};
    memset(&grant, 0, sizeof grant);
    grant.size = sizeof grant;

    RETURNS(JOBFENCE_USAGE, "fence must not be NULL", open_fence(config, NULL, USER, NULL, NULL, &path));
    CHECK(path == NULL);
    RETURNS(JOBFENCE_USAGE, "fence must not be NULL", attach(config, NULL, work->child, JOBFENCE_NO_TASK, 0));
    RETURNS(JOBFENCE_USAGE, "fence must not be NULL", limit(config, NULL, &grant));
    RETURNS(JOBFENCE_USAGE, "fence must not be NULL", usage(config, NULL, NULL, NULL));
    RETURNS(JOBFENCE_USAGE, "fence must not be NULL", freeze(config, NULL));
    RETURNS(JOBFENCE_USAGE, "fence must not be NULL", thaw(config, NULL));
    RETURNS(JOBFENCE_USAGE, "fence must not be NULL", close_fence(config, NULL, &text, &json));
    CHECK(text == NULL && json == NULL);
    wrong.job = NULL;
    RETURNS(JOBFENCE_USAGE, "job must not be NULL", usage(config, &wrong, NULL, NULL));
    wrong.job = "";
    RETURNS(JOBFENCE_USAGE, "not an id of a job", usage(config, &wrong, NULL, NULL));
    wrong.job = "\xff";
    RETURNS(JOBFENCE_USAGE, "job must be UTF-8", usage(config, &wrong, NULL, NULL));
    wrong = fence;
    wrong.reserved = 1;
    RETURNS(JOBFENCE_USAGE, "reserved must be zero", usage(config, &wrong, NULL, NULL));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        wrong = fence;
        wrong.size = sizes[i];
        RETURNS(JOBFENCE_USAGE, "the size must be sizeof(struct jobfence_fence)", close_fence(config, &wrong, NULL, NULL));
    }
    memset(&larger, 0, sizeof larger);
    larger.known = fence;
    larger.known.size = sizeof larger;
    RETURNS(JOBFENCE_OK, "", close_fence(config, &larger.known, NULL, NULL));
    larger.more = 1;
    RETURNS(JOBFENCE_USAGE, "needs a newer libjobfence.so", close_fence(config, &larger.known, NULL, NULL));

    RETURNS(JOBFENCE_USAGE, "absolute path", open_fence("jobfence.conf", &fence, USER, NULL, NULL, NULL));
    RETURNS(JOBFENCE_REFUSED, "/no/such/file", open_fence("/no/such/file", &fence, USER, NULL, NULL, NULL));
    RETURNS(JOBFENCE_REFUSED, "/no/such/file", usage("/no/such/file", &fence, NULL, NULL));
    RETURNS(JOBFENCE_USAGE, "holder: expected pid:NUMBER", open_fence(config, &fence, USER, "nobody", NULL, NULL));
    RETURNS(JOBFENCE_REFUSED, "no such process to hold", open_fence(config, &fence, USER, "pid:2147483646", NULL, NULL));
    RETURNS(JOBFENCE_REFUSED, "no program is started", open_fence(config, &fence, USER, "unit:a.service", NULL, NULL));
    RETURNS(JOBFENCE_USAGE, "uid must be", open_fence(config, &fence, (uint32_t)-1, NULL, NULL, NULL));
    grant.cpus = 65536001;
    RETURNS(JOBFENCE_USAGE, "cpus must be", open_fence(config, &fence, USER, NULL, &grant, NULL));
    grant.cpus = 0;
    grant.memory = 1048575;
    RETURNS(JOBFENCE_USAGE, "memory must be", open_fence(config, &fence, USER, NULL, &grant, NULL));
    grant.memory = 0;
    grant.memory_swap = 1048575;
    RETURNS(JOBFENCE_USAGE, "memory_swap must be", open_fence(config, &fence, USER, NULL, &grant, NULL));
    grant.memory_swap = 0;
    grant.gpus = 1025;
    RETURNS(JOBFENCE_USAGE, "gpus must be", open_fence(config, &fence, USER, NULL, &grant, NULL));
    grant.gpus = 0;
    grant.pids_max = "many";
    RETURNS(JOBFENCE_REFUSED, "pids-max: found \"many\"", open_fence(config, &fence, USER, NULL, &grant, NULL));

    RETURNS(JOBFENCE_NO_FENCE, "no fence of", attach(config, &fence, work->child, JOBFENCE_NO_TASK, 0));
    grant.pids_max = NULL;
    RETURNS(JOBFENCE_NO_FENCE, "no fence of", limit(config, &fence, &grant));
    RETURNS(JOBFENCE_NO_FENCE, "no fence of", freeze(config, &fence));
    RETURNS(JOBFENCE_NO_FENCE, "no fence of", thaw(config, &fence));
    json = (char *)1;
    RETURNS(JOBFENCE_NO_FENCE, "no fence of", usage(config, &fence, &text, &json));
    CHECK(text == NULL && json == NULL);
    RETURNS(JOBFENCE_OK, "", close_fence(config, &fence, &text, &json));
    CHECK(text != NULL && text[0] == 0 && json != NULL && strcmp(json, "{\"schema\":1,\"fences\":[]}") == 0);
    free_text(text);
    free_text(json);
    free_text(NULL);
}

static void limits_are(const struct jobfence_fence *fence, const char *expected)
{
    char *text = NULL, *json = NULL;
    RETURNS(JOBFENCE_OK, "", usage(config, fence, &text, &json));
    CHECK(text != NULL && strncmp(text, "job ", 4) == 0 && strstr(text, " cpu ") != NULL);
    if (json == NULL || strstr(json, expected) == NULL)
        fprintf(report, "expected %s in %s\n", expected, json ? json : "NULL");
    free_text(text);
    free_text(json);
}

static void live(const struct work *work)
{
    struct jobfence_fence fence = {sizeof fence, work->job, NULL, 0, 0};
    struct jobfence_fence older = {offsetof(struct jobfence_fence, run), work->job, NULL, 77, 77};
    struct jobfence_grant grant;
    struct jobfence_totals totals = {sizeof totals, 9, 9, 9, 9, 9, 9, 9, 9, 9};
    char *path = NULL, *text = NULL, *json = NULL, proc[64], holder[64];
    int status = 0;
    memset(&grant, 0, sizeof grant);
    grant.size = sizeof grant;
    grant.cpus = 500;
    grant.memory = 64 << 20;
    grant.partition = "batch";
    grant.pids_max = "20";
    snprintf(holder, sizeof holder, "pid:%d", (int)getpid());

    RETURNS(JOBFENCE_OK, "", open_fence(config, &fence, USER, NULL, &grant, &path));
    CHECK(path != NULL && strstr(path, work->job) != NULL && strstr(path, "/step_0") != NULL);
    limits_are(&fence, "\"cpus_limit\":0.5,\"memory_limit_bytes\":67108864,\"processes_limit\":20,");
    RETURNS(JOBFENCE_OK, "", total(config, &fence, &totals));
    CHECK(totals.size == sizeof totals && totals.fences == 1 && totals.cpu_us != 9 && totals.cpu_us < 1000000);
    CHECK(totals.oom_kills == 0 && totals.forks_refused == 0 && totals.memory_peak != 9);
    totals.size = offsetof(struct jobfence_totals, cpu_us);
    totals.cpu_us = 9;
    RETURNS(JOBFENCE_OK, "", total(config, &fence, &totals));
    CHECK(totals.size == offsetof(struct jobfence_totals, cpu_us) && totals.fences == 1 && totals.cpu_us == 9);
    RETURNS(JOBFENCE_USAGE, "must not be NULL", total(config, &fence, NULL));
    /* Once more, with other limits; as a program that was compiled before this release. */
    grant.size = offsetof(struct jobfence_grant, user);
    grant.user = grant.io_max = (const char *)1;
    grant.memory = 96 << 20;
    RETURNS(JOBFENCE_OK, "", open_fence(config, &older, USER, "manual", &grant, NULL));
    limits_are(&older, "\"cpus_limit\":0.5,\"memory_limit_bytes\":100663296,");
    RETURNS(JOBFENCE_REFUSED, "has a fence already", open_fence(config, &fence, USER, holder, &grant, NULL));
    RETURNS(JOBFENCE_REFUSED, "has a fence already", open_fence(config, &fence, USER - 1, NULL, &grant, NULL));

    for (int i = 0; i < 2; i++)
        RETURNS(JOBFENCE_OK, "", attach(config, &fence, work->child, JOBFENCE_NO_TASK, 0));
    snprintf(proc, sizeof proc, "/proc/%d/cgroup", (int)work->child);
    CHECK(path != NULL && has(proc, path));
    RETURNS(JOBFENCE_REFUSED, "cannot be put", attach(config, &fence, (int)getpid(), JOBFENCE_NO_TASK, JOBFENCE_ANY_USER));
    RETURNS(JOBFENCE_REFUSED, "cannot be put", attach(config, &fence, 0, JOBFENCE_NO_TASK, 0));
    RETURNS(JOBFENCE_REFUSED, "no such process", attach(config, &fence, 2147483646, JOBFENCE_NO_TASK, 0));
    RETURNS(JOBFENCE_USAGE, "task must be", attach(config, &fence, work->child, -2, 0));
    RETURNS(JOBFENCE_USAGE, "task must be", attach(config, &fence, work->child, (int64_t)1 << 32, 0));
    RETURNS(JOBFENCE_USAGE, "flags", attach(config, &fence, work->child, JOBFENCE_NO_TASK, 2));
    RETURNS(JOBFENCE_REFUSED, "not of the job's user", attach(config, &fence, work->roots, JOBFENCE_NO_TASK, 0));
    RETURNS(JOBFENCE_OK, "", attach(config, &fence, work->roots, 3, JOBFENCE_ANY_USER));

    grant.cpus = 250;
    RETURNS(JOBFENCE_OK, "", limit(config, &fence, &grant));
    limits_are(&fence, "\"cpus_limit\":0.25,");

    CHECK(counts(work->counter));
    for (int i = 0; i < 2; i++)
        RETURNS(JOBFENCE_OK, "", freeze(config, &fence));
    CHECK(stands(work->counter));
    for (int i = 0; i < 2; i++)
        RETURNS(JOBFENCE_OK, "", thaw(config, &fence));
    CHECK(counts(work->counter));

    RETURNS(JOBFENCE_OK, "", close_fence(config, &fence, &text, &json));
    CHECK(text != NULL && strstr(text, " ended: cpu ") != NULL);
    CHECK(json != NULL && strstr(json, work->job) != NULL && strstr(json, "\"cpu_seconds\":0.") != NULL);
    CHECK(waitpid(work->child, &status, 0) == work->child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK(waitpid(work->roots, &status, 0) == work->roots && WIFSIGNALED(status));
    free_text(text);
    free_text(json);
    free_text(path);
    RETURNS(JOBFENCE_OK, "", close_fence(config, &fence, NULL, NULL));
    RETURNS(JOBFENCE_NO_FENCE, "no fence of", usage(config, &fence, NULL, NULL));
}

static void *work(void *data)
{
    CHECK(strcmp(last_error(), "") == 0);
    wrong_calls(data);
    live(data);
    return NULL;
}

/* The fence of a holder that has died is removed; one of another is counted. */
static void reap_the_dead(pid_t holder)
{
    struct jobfence_fence fence = {sizeof fence, "dead", NULL, 0, 0}, living = {sizeof living, "living", "s.1", 2, 0};
    struct jobfence_reaped reaped = {sizeof reaped, 9, 9, 9, 9};
    char words[64];
    snprintf(words, sizeof words, "pid:%d", (int)holder);
    RETURNS(JOBFENCE_OK, "", open_fence(config, &fence, USER, words, NULL, NULL));
    RETURNS(JOBFENCE_OK, "", open_fence(config, &living, USER, NULL, NULL, NULL));
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
    RETURNS(JOBFENCE_OK, "", reap(config, 0, &reaped));
    if (reaped.size != sizeof reaped || reaped.removed != 1 || reaped.alive != 1 || reaped.busy + reaped.failed != 0)
        fprintf(report, "reaped %u, alive %u, busy %u, failed %u\n", reaped.removed, reaped.alive, reaped.busy, reaped.failed);
    reaped.size = offsetof(struct jobfence_reaped, busy);
    reaped.removed = reaped.busy = reaped.failed = 9;
    RETURNS(JOBFENCE_OK, "", reap(config, 1000, &reaped));
    CHECK(reaped.removed == 0 && reaped.alive == 1 && reaped.busy == 9 && reaped.failed == 9);
    RETURNS(JOBFENCE_USAGE, "patience_ms must be", reap(config, 60001, NULL));
    RETURNS(JOBFENCE_OK, "", reap(config, 0, NULL));
    RETURNS(JOBFENCE_NO_FENCE, "no fence of", usage(config, &fence, NULL, NULL));
    RETURNS(JOBFENCE_OK, "", close_fence(config, &living, NULL, NULL));
}

static pthread_barrier_t beginning;

/* The first that sets the log has the library's to itself; those beside it must not be refused. */
static void *listen(void *nothing)
{
    pthread_barrier_wait(&beginning);
    RETURNS(JOBFENCE_OK, "", set_log(note_line, (void *)&lines));
    return nothing;
}

static void listen_at_once(void)
{
    pthread_t threads[LISTENERS];
    pthread_barrier_init(&beginning, NULL, LISTENERS);
    for (int i = 0; i < LISTENERS; i++)
        pthread_create(&threads[i], NULL, listen, NULL);
    for (int i = 0; i < LISTENERS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&beginning);
}

static void *load(const char *file)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(report, "%s\n", dlerror());
        return NULL;
    }
#define LOOK_UP(pointer, name) *(void **)&(pointer) = dlsym(library, name)
    LOOK_UP(abi_version, "jobfence_abi_version");
    LOOK_UP(last_error, "jobfence_last_error");
    LOOK_UP(free_text, "jobfence_free");
    LOOK_UP(set_log, "jobfence_set_log");
    LOOK_UP(open_fence, "jobfence_open");
    LOOK_UP(attach, "jobfence_attach");
    LOOK_UP(limit, "jobfence_limit");
    LOOK_UP(usage, "jobfence_usage");
    LOOK_UP(freeze, "jobfence_freeze");
    LOOK_UP(thaw, "jobfence_thaw");
    LOOK_UP(close_fence, "jobfence_close");
    LOOK_UP(reap, "jobfence_reap");
    LOOK_UP(total, "jobfence_total");
    return library;
}

int main(int argc, char **argv)
{
    volatile unsigned *counters;
    struct work works[2];
    pthread_t threads[2];
    int descriptors, tasks;
    if (argc != 4 || (report = fopen(argv[3], "w")) == NULL)
        return 2;
    /* A child that was not killed would be waited for without end. */
    alarm(100);
    setvbuf(report, NULL, _IOLBF, 0);
    config = argv[2];
    counters = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    descriptors = entries("/proc/self/fd");
    tasks = entries("/proc/self/task");

    for (int round = 0; round < ROUNDS; round++) {
        pid_t others, holder = counting(0, &counters[8]);
        int status = 0;
        void *library = load(argv[1]);
        if (library == NULL) {
            kill(holder, SIGKILL);
            return 1;
        }
        CHECK(abi_version() == JOBFENCE_ABI_VERSION);
        lines = 0;
        /* In one round nobody listens. */
        if (round > 0)
            listen_at_once();
        others = fork();
        if (others == 0) {
            struct jobfence_fence fence = {sizeof fence, "x", NULL, 0, 0};
            if (setuid(USER) != 0)
                _exit(9);
            RETURNS(JOBFENCE_REFUSED, "jobfence_close needs root", close_fence(config, &fence, NULL, NULL));
            _exit(0);
        }
        CHECK(waitpid(others, &status, 0) == others && status == 0);
        for (int i = 0; i < 2; i++) {
            struct work one = {i == 0 ? "4711.first" : "4711.second", 0, 0, &counters[i]};
            one.child = counting(USER, one.counter);
            one.roots = counting(0, &counters[8]);
            works[i] = one;
        }
        for (int i = 0; i < 2; i++)
            pthread_create(&threads[i], NULL, work, &works[i]);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        CHECK(strcmp(last_error(), "") == 0);
        reap_the_dead(holder);
        CHECK((lines > 0) == (round > 0));
        CHECK(entries("/proc/self/task") == tasks);
        RETURNS(JOBFENCE_OK, "", set_log(NULL, NULL));
        dlclose(library);
        last_error = NULL;
        CHECK(!has("/proc/self/maps", argv[1]));
        CHECK(entries("/proc/self/fd") == descriptors);
        CHECK(entries("/proc/self/task") == tasks);
    }
    return fclose(report) == 0 ? 0 : 1;
}
