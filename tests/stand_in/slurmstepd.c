/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Stands for slurmstepd, and for slurmd: has the functions of Slurm that jobfence looks for in its process, loads it, and goes
 * through its callbacks in Slurm's order. Nothing of Slurm's runs here, so a test can have it die at any system call.
 *
 *     slurmstepd FILE.so [WORD...] -- [ARGUMENT OF THE PLUGIN...]
 *
 * Words:
 *     uid=N job=N step=N   whose step it is
 *     read=NAME:FILE       the task says what is in this file of its cgroup, and of those around it, in the hierarchy NAME
 *     read=NAME@MOUNT      where that is mounted; NAME is as in /proc/PID/cgroup
 *     theirs=KIND:TOP      Slurm's own directories are below this one; KIND is v2, or of v1 freezer, memory, cpuset or cpuacct
 *     silent=ITEM          Slurm does not tell the item with this number
 *     gids=N               a group that the step's user has; without this, Slurm tells none
 *     cores=LIST           the cores of the job and of the step, as Slurm's items have them; otherwise the first one
 *     straggler            the task leaves a process behind
 *     hold                 waits between the task's end and the step's, until its stdin ends
 *     steps=N              so many steps in this one process, each of which loads and unloads the file; they have no task
 *     starts=N             so many starts of slurmd instead
 *
 * On stdout is what the task has found out, and whoever is left of the step keeps it open. The log is on stderr: lines that
 * begin with info, error, debug (Slurm's log), told (the user) or wrong (an answer that is none). Around the callbacks stand system
 * calls that do not exist, MARK, by which a tracer knows where it is.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/slurm_errno.h>
#include <slurm/spank.h>

enum { MARK = 0x6a6f62 };
enum phase { NONE, BEGIN, ATTACH, TASK_EXIT, END };

static struct {
    uid_t uid;
    uint32_t job, step;
    char **words;
    int n_words;
} step = {.uid = 61001, .job = 1, .step = 0};

static spank_context_t context = S_CTX_REMOTE;
static pid_t task;
/* As waitpid says it. -1: it lives. */
static int task_status = -1;

/* ---- the log -------------------------------------------------------------------------------------------------------- */

/* One write for each line, so that a tracer can tell it from the plugin's own. */
static void say(const char *level, const char *format, va_list values)
{
    char line[8192];
    size_t length = snprintf(line, sizeof line, "%s: ", level);
    length += vsnprintf(line + length, sizeof line - length - 1, format, values);
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) < 0)
        abort();
}

#define LOG(function, level)              \
    void function(const char *format, ...) \
    {                                      \
        va_list values;                    \
        va_start(values, format);          \
        say(level, format, values);        \
        va_end(values);                    \
    }

LOG(slurm_info, "info")
LOG(slurm_error, "error")
LOG(slurm_debug, "debug")
LOG(slurm_spank_log, "told")
static LOG(wrong, "wrong")

/* ---- what a plugin asks Slurm --------------------------------------------------------------------------------------- */

/* That of 23.02: what is new since is not used. */
long slurm_api_version(void)
{
    return 39L << 16;
}

spank_context_t spank_context(void)
{
    return context;
}

static const char *word(const char *key);
static long number(const char *key, long otherwise);

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
    (void)spank;
    if (number("silent", -1) == (long)item)
        return ESPANK_BAD_ARG;
    va_list to;
    va_start(to, item);
    void *value = va_arg(to, void *), *second;
    spank_err_t failed = ESPANK_SUCCESS;
    switch (item) {
    case S_JOB_UID: *(uid_t *)value = step.uid; break;
    case S_JOB_GID: *(gid_t *)value = step.uid; break;
    case S_JOB_ID: *(uint32_t *)value = step.job; break;
    case S_JOB_STEPID: *(uint32_t *)value = step.step; break;
    case S_JOB_LOCAL_TASK_COUNT: *(uint32_t *)value = 1; break;
    case S_JOB_NCPUS: *(uint16_t *)value = 1; break;
    case S_STEP_CPUS_PER_TASK: *(uint32_t *)value = 1; break;
    case S_JOB_ALLOC_CORES:
    case S_STEP_ALLOC_CORES: *(const char **)value = word("cores") ? word("cores") : "0"; break;
    case S_JOB_ALLOC_MEM:
    case S_STEP_ALLOC_MEM: *(uint64_t *)value = 200; break;
    case S_JOB_SUPPLEMENTARY_GIDS:
        second = va_arg(to, void *);
        static gid_t gid;
        gid = number("gids", 0);
        *(gid_t **)value = word("gids") ? &gid : NULL;
        *(int *)second = word("gids") != NULL;
        break;
    case S_TASK_ID: *(int *)value = 0; break;
    case S_TASK_GLOBAL_ID: *(uint32_t *)value = 0; break;
    case S_TASK_PID:
        *(pid_t *)value = task;
        failed = task > 0 ? ESPANK_SUCCESS : ESPANK_NOT_TASK;
        break;
    case S_TASK_EXIT_STATUS:
        *(int *)value = task_status;
        failed = task_status >= 0 ? ESPANK_SUCCESS : ESPANK_NOT_TASK;
        break;
    default: failed = ESPANK_BAD_ARG;
    }
    va_end(to);
    return failed;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *value, int length)
{
    (void)spank;
    const char *found = getenv(name);
    if (!found)
        return ESPANK_ENV_NOEXIST;
    return snprintf(value, length, "%s", found) < length ? ESPANK_SUCCESS : ESPANK_NOSPACE;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
    (void)spank;
    return setenv(name, value, overwrite) ? ESPANK_BAD_ARG : ESPANK_SUCCESS;
}

spank_err_t spank_unsetenv(spank_t spank, const char *name)
{
    (void)spank;
    return unsetenv(name) ? ESPANK_BAD_ARG : ESPANK_SUCCESS;
}

/* For the commands that make allocations, of which this is none. */
spank_err_t spank_job_control_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
    (void)spank, (void)name, (void)value, (void)overwrite;
    return ESPANK_NOT_LOCAL;
}

/* Nobody gives any. */
spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
    (void)spank;
    return option->name && option->usage && option->cb ? ESPANK_SUCCESS : ESPANK_BAD_ARG;
}

/* ---- the plugin ----------------------------------------------------------------------------------------------------- */

static void *plugin;
static char **plugin_arguments;
static int n_plugin_arguments, is_wrong;

static void load(const char *file)
{
    plugin = dlopen(file, RTLD_LAZY);
    if (!plugin) {
        fprintf(stderr, "wrong: %s\n", dlerror());
        exit(3);
    }
}

static void unload(void)
{
    if (dlclose(plugin)) {
        wrong("the file is not unloaded");
        is_wrong = 1;
    }
}

/* As Slurm calls it: what is neither 0 nor -1 means other things in other releases. */
static int call(const char *name, enum phase phase)
{
    spank_f *callback = (spank_f *)dlsym(plugin, name);
    if (!callback) {
        wrong("no %s", name);
        exit(3);
    }
    syscall(MARK, phase);
    int answer = callback((spank_t)&step, n_plugin_arguments, plugin_arguments);
    syscall(MARK, NONE);
    if (answer != 0 && answer != -1) {
        wrong("%s answers %d", name, answer);
        is_wrong = 1;
    }
    return answer;
}

/* ---- Slurm's own directories ---------------------------------------------------------------------------------------- */

/* By src/plugins/cgroup of Slurm: the first are made and removed by what tracks processes, around all callbacks; the others of v1
 * after init_post_opt, and they are gone before exit. */
struct theirs {
    const char *top;
    int is_v2, is_first;
    /* From the outermost to the task's, but for the one that a v2 daemon has for itself. */
    char dirs[6][PATH_MAX], daemons[PATH_MAX], out[PATH_MAX];
    int n_dirs;
};

static void add_dir(struct theirs *theirs, const char *format, long number)
{
    const char *above = theirs->n_dirs ? theirs->dirs[theirs->n_dirs - 1] : theirs->top;
    char *dir = theirs->dirs[theirs->n_dirs++];
    int length = snprintf(dir, PATH_MAX, "%s/", above);
    snprintf(dir + length, PATH_MAX - length, format, number);
}

/* Those of the word with this number. */
static int theirs_of(int index, struct theirs *theirs)
{
    const char *found = step.words[index], *colon = strchr(found, ':');
    if (strncmp(found, "theirs=", 7) || !colon)
        return 0;
    size_t length = colon - found - 7;
    int is_freezer = !strncmp(found + 7, "freezer", length), is_memory = !strncmp(found + 7, "memory", length);
    *theirs = (struct theirs){.top = colon + 1, .is_v2 = !strncmp(found + 7, "v2", length)};
    theirs->is_first = theirs->is_v2 || is_freezer;
    if (!theirs->is_v2)
        add_dir(theirs, "uid_%ld", step.uid);
    add_dir(theirs, "job_%ld", step.job);
    const char *job = theirs->dirs[theirs->n_dirs - 1];
    add_dir(theirs, "step_%ld", step.step);
    const char *its = theirs->dirs[theirs->n_dirs - 1];
    if (theirs->is_v2) {
        snprintf(theirs->daemons, PATH_MAX, "%s/slurm", its);
        snprintf(theirs->out, PATH_MAX, "%s/system", theirs->top);
        add_dir(theirs, "user", 0);
    } else {
        snprintf(theirs->daemons, PATH_MAX, "%s", is_freezer ? job : is_memory ? its : "");
        snprintf(theirs->out, PATH_MAX, "%s/..", theirs->top);
    }
    if (!is_freezer)
        add_dir(theirs, "task_%ld", 0);
    return 1;
}

/* Without CPUs and memory nobody can be in it. */
static void fill_cpuset(const char *dir)
{
    static const char *const files[] = {"cpuset.cpus", "cpuset.mems"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char file[2 * PATH_MAX], value[4096];
        snprintf(file, sizeof file, "%s/../%s", dir, files[i]);
        FILE *from = fopen(file, "re");
        snprintf(file, sizeof file, "%s/%s", dir, files[i]);
        FILE *to = from ? fopen(file, "we") : NULL;
        if (to && fgets(value, sizeof value, from))
            fputs(value, to);
        if (to)
            fclose(to);
        if (from)
            fclose(from);
    }
}

static void make(const char *dir)
{
    if (mkdir(dir, 0755) && errno != EEXIST)
        wrong("%s: %s", dir, strerror(errno));
    fill_cpuset(dir);
}

static void enter(const char *dir, pid_t pid)
{
    char file[2 * PATH_MAX];
    snprintf(file, sizeof file, "%s/cgroup.procs", dir);
    FILE *to = fopen(file, "we");
    int failed = !to || fprintf(to, "%d", pid) < 0;
    failed |= to && fclose(to) != 0;
    /* A task that was refused has ended. */
    if (failed && errno != ESRCH)
        wrong("%s: %d: %s", file, pid, strerror(errno));
}

static void make_theirs(int first)
{
    static struct theirs theirs;
    for (int i = 0; i < step.n_words; i++)
        if (theirs_of(i, &theirs) && theirs.is_first == first) {
            make(theirs.top);
            for (int k = 0; k < theirs.n_dirs; k++)
                make(theirs.dirs[k]);
            if (theirs.is_v2)
                make(theirs.daemons), make(theirs.out);
            if (*theirs.daemons)
                enter(theirs.daemons, getpid());
        }
}

static void add_to_theirs(pid_t pid)
{
    static struct theirs theirs;
    for (int i = 0; i < step.n_words; i++)
        if (theirs_of(i, &theirs))
            enter(theirs.dirs[theirs.n_dirs - 1], pid);
}

/* As Slurm ends a step: all that are where it tracks processes. */
static void kill_theirs(void)
{
    static struct theirs theirs;
    for (int i = 0; i < step.n_words; i++)
        for (int someone = theirs_of(i, &theirs) && theirs.is_first; someone;) {
            char file[2 * PATH_MAX];
            snprintf(file, sizeof file, "%s/cgroup.procs", theirs.dirs[theirs.n_dirs - 1]);
            FILE *from = fopen(file, "re");
            someone = 0;
            for (int pid; from && fscanf(from, "%d", &pid) == 1; someone = 1)
                if (pid > 1 && pid != getpid())
                    kill(pid, SIGKILL);
            if (from)
                fclose(from);
            usleep(someone ? 1000 : 0);
        }
}

/* The daemon goes out of them, and those that are empty are removed. */
static void remove_theirs(int first)
{
    static struct theirs theirs;
    for (int i = 0; i < step.n_words; i++)
        if (theirs_of(i, &theirs) && theirs.is_first == first) {
            if (*theirs.daemons)
                enter(theirs.out, getpid());
            if (theirs.is_v2)
                rmdir(theirs.daemons);
            for (int k = theirs.n_dirs - 1; k >= 0; k--)
                rmdir(theirs.dirs[k]);
        }
}

/* ---- the task ------------------------------------------------------------------------------------------------------- */

static const char *word(const char *key)
{
    size_t length = strlen(key);
    for (int i = 0; i < step.n_words; i++)
        if (!strncmp(step.words[i], key, length) && (step.words[i][length] == '=' || !step.words[i][length]))
            return step.words[i] + length + (step.words[i][length] == '=');
    return NULL;
}

static long number(const char *key, long otherwise)
{
    return word(key) ? strtol(word(key), NULL, 10) : otherwise;
}

/* Where a hierarchy is mounted. */
static const char *mount_of(const char *name)
{
    size_t length = strlen(name);
    for (int i = 0; i < step.n_words; i++)
        if (!strncmp(step.words[i], "read=", 5) && !strncmp(step.words[i] + 5, name, length) && step.words[i][5 + length] == '@')
            return step.words[i] + 6 + length;
    return NULL;
}

/* The files that were asked for, of this directory and of those around it: the task's, the step's, the job's and the user's. */
static void say_limits(const char *name, const char *path)
{
    size_t length = strlen(name);
    for (int i = 0; i < step.n_words; i++) {
        const char *wanted = step.words[i] + 5;
        if (strncmp(step.words[i], "read=", 5) || strncmp(wanted, name, length) || wanted[length] != ':')
            continue;
        char file[2 * PATH_MAX], value[256];
        static const char *const levels[] = {"", "/..", "/../..", "/../../.."};
        for (size_t level = 0; level < sizeof levels / sizeof *levels; level++) {
            snprintf(file, sizeof file, "%s%s%s/%s", mount_of(name), path, levels[level], wanted + length + 1);
            FILE *from = fopen(file, "re");
            if (!from || !fgets(value, sizeof value, from))
                snprintf(value, sizeof value, "%s", strerror(errno));
            value[strcspn(value, "\n")] = 0;
            printf("limit %s%s %s %s\n", name, levels[level], wanted + length + 1, value);
            if (from)
                fclose(from);
        }
    }
}

static void say_where(void)
{
    char line[2 * PATH_MAX];
    FILE *places = fopen("/proc/self/cgroup", "re");
    while (places && fgets(line, sizeof line, places)) {
        line[strcspn(line, "\n")] = 0;
        /* 4:memory:/uid_1/job_1/step_0 */
        char *name = strchr(line, ':'), *path = name ? strchr(name + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        name = name[1] ? name + 1 : "unified";
        printf("place %s %s\n", name, path);
        if (mount_of(name))
            say_limits(name, path);
    }
    if (places)
        fclose(places);
}

static void run_task(int released)
{
    /* What it says comes in one piece or not at all. */
    static char said[1 << 16];
    setvbuf(stdout, said, _IOFBF, sizeof said);
    if (call("slurm_spank_task_init_privileged", NONE))
        _exit(1);
    if (setgroups(0, NULL) || setresgid(step.uid, step.uid, step.uid) || setresuid(step.uid, step.uid, step.uid))
        _exit(2);
    char go;
    if (read(released, &go, 1) != 1)
        _exit(0); /* the daemon has died */
    call("slurm_spank_task_init", NONE);
    say_where();
    int became[2];
    if (pipe2(became, O_CLOEXEC))
        _exit(2);
    pid_t straggler = word("straggler") ? fork() : -1;
    if (straggler == 0) {
        setsid();
        /* As a program of the user's: what is in its environment shows from outside. */
        execl("/bin/sleep", "sleep", "1000", NULL);
        _exit(2);
    }
    /* Until it is that program. */
    close(became[1]);
    if (straggler > 0 && read(became[0], &go, 1) != 0)
        _exit(2);
    printf("ran %d\n", straggler);
    fflush(stdout);
    _exit(0);
}

static void start_task(int *release)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) || (task = fork()) < 0) {
        wrong("no task: %s", strerror(errno));
        exit(3);
    }
    if (task == 0) {
        close(ends[1]);
        run_task(ends[0]);
    }
    close(ends[0]);
    add_to_theirs(task);
    *release = ends[1];
}

/* ---- steps and starts ----------------------------------------------------------------------------------------------- */

static void run_step(const char *file, int has_task)
{
    make_theirs(1);
    load(file);
    call("slurm_spank_init", NONE);
    call("slurm_spank_init_post_opt", BEGIN);
    make_theirs(0);
    if (has_task) {
        int release;
        start_task(&release);
        call("slurm_spank_task_post_fork", ATTACH);
        /* Who has ended is not there to read it. */
        if (write(release, "", 1) != 1)
            slurm_debug("the task has gone");
        close(release);
        waitpid(task, &task_status, 0);
        call("slurm_spank_task_exit", TASK_EXIT);
    }
    if (word("hold")) {
        char nothing;
        printf("holds\n");
        fflush(stdout);
        while (read(STDIN_FILENO, &nothing, 1) > 0)
            ;
    }
    kill_theirs();
    remove_theirs(0);
    call("slurm_spank_exit", END);
    unload();
    remove_theirs(1);
}

static void start_slurmd(const char *file)
{
    context = S_CTX_SLURMD;
    load(file);
    call("slurm_spank_init", NONE);
    unload();
}

static int entries(const char *directory)
{
    int count = -2; /* . and .. */
    DIR *open_directory = opendir(directory);
    while (open_directory && readdir(open_directory))
        count++;
    if (open_directory)
        closedir(open_directory);
    return count;
}

/* How many lines a file has. */
static int lines(const char *path)
{
    int count = 0, c;
    FILE *file = fopen(path, "re");
    while (file && (c = fgetc(file)) != EOF)
        count += c == '\n';
    if (file)
        fclose(file);
    return count;
}

/* The bytes that are allocated, and not those of the process that are resident: these depend on the order in which others were freed. */
static void say_use(long done)
{
    struct mallinfo2 heap = mallinfo2();
    printf("after %ld descriptors %d threads %d mappings %d bytes %zu\n", done, entries("/proc/self/fd"), entries("/proc/self/task"),
        lines("/proc/self/maps"), heap.uordblks + heap.hblkhd);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int split = 2;
    while (split < argc && strcmp(argv[split], "--"))
        split++;
    if (split >= argc)
        return 2;
    step.words = argv + 2;
    step.n_words = split - 2;
    plugin_arguments = argv + split + 1;
    n_plugin_arguments = argc - split - 1;
    step.uid = number("uid", step.uid);
    step.job = number("job", step.job);
    step.step = number("step", step.step);
    signal(SIGPIPE, SIG_IGN); /* as slurmstepd */
    long steps = number("steps", 0), starts = number("starts", 0), count = steps + starts;
    if (!count)
        run_step(argv[1], 1);
    for (long done = 1; done <= count; done++) {
        if (steps)
            run_step(argv[1], 0);
        else
            start_slurmd(argv[1]);
        if (done % (count / 10 ? count / 10 : 1) == 0)
            say_use(done);
    }
    return is_wrong ? 3 : 0;
}
