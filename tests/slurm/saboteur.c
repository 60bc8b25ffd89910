/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A SPANK plugin that stands beside jobfence in plugstack.conf and makes its work fail, as a host does that has run out of
 * something or another plugin that meddles. What jobfence then meets is a real failure: it has no hook for tests.
 *
 *     optional saboteur.so callback=NAME do=ACTION [step=batch|extern|interactive|N] [task=N] [node=NAME] [context=slurmd]
 *
 * acts in the callback that bears that name, of the steps, the task (its number on the node) and the node that are named,
 * or of all. Listed before jobfence it acts before jobfence's callback, and after it if listed there. Actions:
 *
 *     descriptors   as many files open as the process may have, but for free=N (or free=step: in srun's steps, as many as
 *                   the number of the step)
 *     noproc        nothing in /proc, as far as this thread can see
 *     panic         in jobfence's code alone, no clock can be read: the only thing found to make it panic
 *     readonly      nothing can be written in the hierarchies, as far as this thread can see
 *     rights        another thread gives up root's rights, and the C library takes them from every thread
 *     nobody        this thread is nobody's, and cannot take root's rights back
 *     rmdir         the step's directories are removed
 *     threaded      the job's cgroup2 directory becomes threaded, and then its steps' take no process
 *     move          the task is moved to the top of the hierarchies
 *     astray        the task is moved to where the batch step of its job is
 *     disown        the job's directories, as Slurm has made them, are nobody's
 *     forget        the job's records in run=DIRECTORY are removed
 *     hide          what path=PATH names (more than once) is hidden from this thread: an empty directory or file is there
 *     kill          the task is killed
 *     refuse        this callback fails
 *     where         does nothing: says in which mount namespace the callback runs
 *     restore       undoes the first six, and says how long it was without root's rights
 *
 * top=MOUNT:ROOT:CONTROLLER (more than once) says where the hierarchies are; that of cgroup2 is called "".
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

const char plugin_name[] = "saboteur";
const char plugin_type[] = "spank";
unsigned int plugin_version = SLURM_VERSION_NUMBER;
const unsigned int spank_plugin_version = 1;

/* One file for every release: see src/schedulers/slurm/spank/version.rs. */
__attribute__((constructor)) static void set_plugin_version(void)
{
    static const struct { long api; unsigned int release; } releases[] = {
        {38, 0x160500}, {39, 0x170200}, {40, 0x170b00}, {41, 0x180500}, {42, 0x180b00},
        {43, 0x190500}, {44, 0x190b00}, {45, 0x1a0500}, {46, 0x1a0b00},
    };
    long (*api_version)(void) = (long (*)(void))dlsym(RTLD_DEFAULT, "slurm_api_version");
    for (size_t i = 0; api_version && i < sizeof releases / sizeof *releases; i++)
        if (releases[i].api == api_version() >> 16)
            plugin_version = releases[i].release;
}

/* The value of the nth argument KEY=VALUE. */
static const char *argument(int ac, char **av, const char *key, int nth)
{
    size_t length = strlen(key);
    for (int i = 0; i < ac; i++)
        if (!strncmp(av[i], key, length) && av[i][length] == '=' && nth-- == 0)
            return av[i] + length + 1;
    return NULL;
}

/* A test that believes in a sabotage which did not happen shows nothing: this line is looked for. */
static void say(const char *callback, const char *action, int failed)
{
    if (failed)
        slurm_error("saboteur: %s in %s does not work: %s", action, callback, strerror(errno));
    else
        slurm_info("saboteur: %s in %s done", action, callback);
}

/* ---- descriptors ---------------------------------------------------------------------------------------------------- */

static struct rlimit limit_before;
static int fillers[4096], n_fillers;

static int exhaust(int spare)
{
    /* No lower than what is open: poll() wants the limit to be at least the number of files that it is given. */
    int highest = 2;
    DIR *open_files = opendir("/proc/self/fd");
    if (!open_files)
        return -1;
    for (struct dirent *entry; (entry = readdir(open_files));)
        if (atoi(entry->d_name) > highest)
            highest = atoi(entry->d_name);
    closedir(open_files);
    struct rlimit limit;
    if (n_fillers || getrlimit(RLIMIT_NOFILE, &limit_before))
        return -1;
    limit = limit_before;
    limit.rlim_cur = highest + 1 + spare;
    for (int quiet = 0; quiet < 5;) {
        if (setrlimit(RLIMIT_NOFILE, &limit))
            return -1;
        int before = n_fillers;
        while (n_fillers < 4096 && (fillers[n_fillers] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
            n_fillers++;
        if (errno != EMFILE)
            return -1;
        if (n_fillers < spare) {
            /* Another thread of the daemon has taken some meanwhile. */
            limit.rlim_cur += spare - n_fillers;
            continue;
        }
        /* Another thread may have closed some, or be about to. */
        quiet = n_fillers == before ? quiet + 1 : 0;
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    }
    while (spare-- > 0)
        close(fillers[--n_fillers]);
    return 0;
}

/* ---- panic ---------------------------------------------------------------------------------------------------------- */

static void **clock_slot;
static void *clock_before;

static int no_clock(clockid_t which, struct timespec *when)
{
    (void)which, (void)when;
    errno = EINVAL;
    return -1;
}

/* Finds where jobfence's own copy of the function's address is. */
static int find_slot(struct dl_phdr_info *object, size_t size, void *name)
{
    (void)size;
    if (!strstr(object->dlpi_name, "libjobfence"))
        return 0;
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    struct { const ElfW(Rela) *first; size_t bytes; } tables[2] = {{0}};
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        switch (dynamic->d_tag) {
        case DT_SYMTAB: symbols = (void *)dynamic->d_un.d_ptr; break;
        case DT_STRTAB: strings = (void *)dynamic->d_un.d_ptr; break;
        case DT_RELA: tables[0].first = (void *)dynamic->d_un.d_ptr; break;
        case DT_RELASZ: tables[0].bytes = dynamic->d_un.d_val; break;
        case DT_JMPREL: tables[1].first = (void *)dynamic->d_un.d_ptr; break;
        case DT_PLTRELSZ: tables[1].bytes = dynamic->d_un.d_val; break;
        }
    }
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; symbols && strings && i < tables[t].bytes / sizeof(ElfW(Rela)); i++) {
            const ElfW(Rela) *one = &tables[t].first[i];
            if (!strcmp(strings + symbols[ELF64_R_SYM(one->r_info)].st_name, name))
                clock_slot = (void **)(object->dlpi_addr + one->r_offset);
        }
    return clock_slot != NULL;
}

static int set_clock(void *function)
{
    long page = sysconf(_SC_PAGESIZE);
    if (mprotect((void *)((unsigned long)clock_slot & -page), page, PROT_READ | PROT_WRITE))
        return -1;
    *clock_slot = function;
    return 0;
}

static int take_clock(void)
{
    errno = ENOENT;
    if (clock_before || !dl_iterate_phdr(find_slot, "clock_gettime"))
        return -1;
    clock_before = *clock_slot;
    return set_clock(no_clock);
}

/* ---- rights --------------------------------------------------------------------------------------------------------- */

/* Nor the user of a test, whose processes could be ended as that user. */
enum { NOBODY = 65533 };

static enum { KEPT, GIVEN_UP, LOST } rights;
static struct timespec wall_before;
static struct rusage use_before;

static void *seteuid_in_thread(void *uid)
{
    return (void *)(long)seteuid(*(uid_t *)uid);
}

/* The C library's seteuid asks each thread to follow. */
static int give_rights_up(void)
{
    pthread_t thread;
    void *failed;
    uid_t nobody = NOBODY;
    errno = pthread_create(&thread, NULL, seteuid_in_thread, &nobody);
    if (!errno)
        errno = pthread_join(thread, &failed);
    if (errno || failed || geteuid() != NOBODY)
        return -1;
    rights = GIVEN_UP;
    return 0;
}

/* The system calls change this thread alone. It keeps the capabilities by which it can undo it, and none of them is in effect. */
static int lose_rights(void)
{
    if (prctl(PR_SET_KEEPCAPS, 1) || syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY))
        return -1;
    rights = LOST;
    return 0;
}

static int regain_rights(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2];
    if (syscall(SYS_capget, &header, sets))
        return -1;
    for (int i = 0; i < 2; i++)
        sets[i].effective = sets[i].permitted;
    return syscall(SYS_capset, &header, sets) || syscall(SYS_setresuid, 0, 0, 0) || prctl(PR_SET_KEEPCAPS, 0) ? -1 : 0;
}

static long ms_between(long seconds, long microseconds)
{
    return seconds * 1000 + microseconds / 1000;
}

static void start_clocks(void)
{
    clock_gettime(CLOCK_MONOTONIC, &wall_before);
    getrusage(RUSAGE_THREAD, &use_before);
}

/* Who spins does not sleep, however little of a CPU a busy machine gives him. */
static void say_what_was_used(void)
{
    struct timespec now;
    struct rusage use;
    clock_gettime(CLOCK_MONOTONIC, &now);
    getrusage(RUSAGE_THREAD, &use);
    slurm_info("saboteur: without rights for %ld ms, %ld ms of CPU, slept %ld times",
               ms_between(now.tv_sec - wall_before.tv_sec, (now.tv_nsec - wall_before.tv_nsec) / 1000),
               ms_between(use.ru_utime.tv_sec - use_before.ru_utime.tv_sec + use.ru_stime.tv_sec - use_before.ru_stime.tv_sec,
                          use.ru_utime.tv_usec - use_before.ru_utime.tv_usec + use.ru_stime.tv_usec - use_before.ru_stime.tv_usec),
               use.ru_nvcsw - use_before.ru_nvcsw);
}

/* ---- what can be undone --------------------------------------------------------------------------------------------- */

static int proc_is_hidden;
static const char *readonly[16];
static int n_readonly;

/* A mount namespace of this thread's own: nobody else is to miss anything. */
static int mounts_of_our_own(void)
{
    return unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ? -1 : 0;
}

static int hide_proc(void)
{
    if (mounts_of_our_own() || mount("none", "/proc", "tmpfs", 0, NULL))
        return -1;
    proc_is_hidden = 1;
    return 0;
}

static int make_readonly(int ac, char **av)
{
    if (mounts_of_our_own())
        return -1;
    for (int i = 0; n_readonly < 16 && argument(ac, av, "top", i); i++) {
        char *mount_point = strdup(argument(ac, av, "top", i));
        *strchr(mount_point, ':') = 0;
        if (mount(mount_point, mount_point, NULL, MS_BIND, NULL))
            return -1;
        readonly[n_readonly++] = mount_point;
        if (mount(NULL, mount_point, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL))
            return -1;
    }
    return n_readonly ? 0 : -1;
}

static int hide(int ac, char **av)
{
    const char *path;
    struct stat found;
    if (mounts_of_our_own())
        return -1;
    for (int i = 0; (path = argument(ac, av, "path", i)); i++)
        if (stat(path, &found) || (S_ISDIR(found.st_mode) ? mount("none", path, "tmpfs", 0, "mode=0700")
                                                          : mount("/dev/null", path, NULL, MS_BIND, NULL)))
            return -1;
    return 0;
}

static int restore(void)
{
    int failed = 0;
    if (limit_before.rlim_cur)
        failed |= setrlimit(RLIMIT_NOFILE, &limit_before);
    limit_before.rlim_cur = 0;
    while (n_fillers)
        close(fillers[--n_fillers]);
    if (clock_before)
        failed |= set_clock(clock_before);
    clock_before = NULL;
    if (proc_is_hidden)
        failed |= umount2("/proc", MNT_DETACH);
    proc_is_hidden = 0;
    while (n_readonly)
        failed |= umount2(readonly[--n_readonly], MNT_DETACH);
    if (rights != KEPT) {
        say_what_was_used();
        failed |= rights == LOST ? regain_rights() : seteuid(0);
    }
    rights = KEPT;
    return failed;
}

/* ---- directories ---------------------------------------------------------------------------------------------------- */

/* One hierarchy. */
struct top {
    const char *mount, *root, *controller;
};

/* In a hierarchy, something is done to the directory with this path (as /proc/PID/cgroup has it), or by it. */
typedef int action_in(const struct top *top, const char *path, pid_t task);

/* Where that is in the file system, and what is below it. */
static const char *place(const struct top *top, const char *path, const char *below)
{
    static char found[3 * PATH_MAX];
    size_t above = strcmp(top->root, "/") && !strncmp(path, top->root, strlen(top->root)) ? strlen(top->root) : 0;
    snprintf(found, sizeof found, "%s%s%s", top->mount, path + above, below);
    return found;
}

static int put(const char *file, const char *value)
{
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t written = write(fd, value, strlen(value));
    close(fd);
    return written == (ssize_t)strlen(value) ? 0 : -1;
}

static int remove_step(const struct top *top, const char *path, pid_t task)
{
    (void)task;
    return rmdir(place(top, path, ""));
}

static int make_threaded(const struct top *top, const char *path, pid_t task)
{
    (void)task;
    return *top->controller ? (errno = ENOENT, -1) : put(place(top, path, "/../cgroup.type"), "threaded");
}

static int move_to(const struct top *top, const char *path, pid_t task)
{
    char pid[16];
    snprintf(pid, sizeof pid, "%d", task);
    return put(place(top, path, "/cgroup.procs"), pid);
}

static int move_to_top(const struct top *top, const char *path, pid_t task)
{
    (void)path;
    return move_to(top, top->root, task);
}

/* In the task's path, the end of the job's part. */
static const char *end_of_job(const char *path)
{
    errno = ENOENT;
    return strstr(path, "/step_");
}

static int move_to_batch_step(const struct top *top, const char *path, pid_t task)
{
    char batch[2 * PATH_MAX];
    const char *step = end_of_job(path);
    if (!step)
        return -1;
    const char *rest = strchr(step + 1, '/');
    snprintf(batch, sizeof batch, "%.*s/step_batch%s", (int)(step - path), path, rest ? rest : "");
    return move_to(top, batch, task);
}

static int disown(const struct top *top, const char *path, pid_t task)
{
    (void)task;
    char job[PATH_MAX];
    const char *step = end_of_job(path);
    if (!step)
        return -1;
    snprintf(job, sizeof job, "%.*s", (int)(step - path), path);
    return chown(place(top, job, ""), NOBODY, -1);
}

/* Where a process is in this hierarchy. */
static int path_of(pid_t pid, const struct top *top, char *path)
{
    char file[64], line[2 * PATH_MAX], names[PATH_MAX], wanted[64];
    snprintf(file, sizeof file, "/proc/%d/cgroup", pid);
    snprintf(wanted, sizeof wanted, ",%s,", top->controller);
    FILE *text = fopen(file, "re");
    int found = 0;
    while (text && !found && fgets(line, sizeof line, text)) {
        char *first = strchr(line, ':'), *second = first ? strchr(first + 1, ':') : NULL;
        if (!second)
            continue;
        snprintf(names, sizeof names, ",%.*s,", (int)(second - first - 1), first + 1);
        found = strstr(names, wanted) != NULL;
        snprintf(path, PATH_MAX, "%.*s", (int)strcspn(second + 1, "\n"), second + 1);
    }
    if (text)
        fclose(text);
    errno = ENOENT;
    return found ? 0 : -1;
}

/* `act` in each hierarchy, with the path of `task`, or without one that of the step's directories, by the variable that
 * jobfence has set. */
static int in_hierarchies(spank_t spank, int ac, char **av, pid_t task, action_in *act)
{
    char path[PATH_MAX];
    int done = 0;
    if (!task && spank_getenv(spank, "JOBFENCE_CGROUP", path, sizeof path) != ESPANK_SUCCESS) {
        errno = ENOENT;
        return -1;
    }
    for (int i = 0; argument(ac, av, "top", i); i++) {
        char *text = strdup(argument(ac, av, "top", i)), *rest = text;
        struct top top;
        top.mount = strsep(&rest, ":");
        top.root = strsep(&rest, ":");
        top.controller = rest;
        if (rest && (!task || path_of(task, &top, path) == 0) && act(&top, path, task) == 0)
            done++;
        else if (errno != ENOENT)
            return -1;
        free(text);
    }
    return done ? 0 : -1;
}

static int forget(const char *run, unsigned int job)
{
    char part[64];
    snprintf(part, sizeof part, ",job_%u,", job);
    DIR *records = run ? opendir(run) : NULL;
    if (!records)
        return -1;
    int done = 0;
    for (struct dirent *entry; (entry = readdir(records));)
        if (strstr(entry->d_name, part))
            done += !unlinkat(dirfd(records), entry->d_name, 0);
    closedir(records);
    errno = ENOENT;
    return done ? 0 : -1;
}

static int say_where(const char *callback)
{
    char namespace[64];
    ssize_t length = readlink("/proc/self/ns/mnt", namespace, sizeof namespace - 1);
    if (length < 0)
        return -1;
    namespace[length] = 0;
    slurm_info("saboteur: %s runs in %s", callback, namespace);
    return 0;
}

static int is_meant(const char *wanted, unsigned int step)
{
    char number[16];
    if (!wanted)
        return 1;
    snprintf(number, sizeof number, "%u", step);
    return !strcmp(wanted, step == SLURM_BATCH_SCRIPT ? "batch" : step == SLURM_EXTERN_CONT ? "extern" :
                   step == SLURM_INTERACTIVE_STEP ? "interactive" : number);
}

static int act(spank_t spank, const char *callback, int ac, char **av)
{
    const char *wanted = argument(ac, av, "callback", 0), *action = argument(ac, av, "do", 0);
    const char *task = argument(ac, av, "task", 0), *node = argument(ac, av, "node", 0);
    const char *context = argument(ac, av, "context", 0), *spare = argument(ac, av, "free", 0);
    unsigned int step = 0, job = 0;
    int local = -1, failed = -1;
    if (!wanted || !action || strcmp(wanted, callback))
        return 0;
    if (spank_context() != (context && !strcmp(context, "slurmd") ? S_CTX_SLURMD : S_CTX_REMOTE))
        return 0;
    if (spank_context() == S_CTX_REMOTE) {
        spank_get_item(spank, S_JOB_STEPID, &step);
        spank_get_item(spank, S_JOB_ID, &job);
        if (task)
            spank_get_item(spank, S_TASK_ID, &local);
        if (!is_meant(argument(ac, av, "step", 0), step) || (task && atoi(task) != local))
            return 0;
        if (spare && !strcmp(spare, "step") && step >= SLURM_INTERACTIVE_STEP)
            return 0;
        if (node && strcmp(node, getenv("SLURMD_NODENAME") ? getenv("SLURMD_NODENAME") : ""))
            return 0;
    }
    pid_t pid = 0;
    if (!strcmp(callback, "task_post_fork") || !strcmp(callback, "task_exit"))
        spank_get_item(spank, S_TASK_PID, &pid);
    errno = 0;
    if (!strcmp(action, "descriptors"))
        failed = exhaust(spare && !strcmp(spare, "step") ? (int)step : spare ? atoi(spare) : 0);
    else if (!strcmp(action, "noproc"))
        failed = hide_proc();
    else if (!strcmp(action, "panic"))
        failed = take_clock();
    else if (!strcmp(action, "readonly"))
        failed = make_readonly(ac, av);
    else if (!strcmp(action, "rights"))
        failed = give_rights_up();
    else if (!strcmp(action, "nobody"))
        failed = lose_rights();
    else if (!strcmp(action, "rmdir"))
        failed = in_hierarchies(spank, ac, av, 0, remove_step);
    else if (!strcmp(action, "threaded"))
        failed = in_hierarchies(spank, ac, av, 0, make_threaded);
    else if (!strcmp(action, "move"))
        failed = in_hierarchies(spank, ac, av, pid, move_to_top);
    else if (!strcmp(action, "astray"))
        failed = in_hierarchies(spank, ac, av, pid, move_to_batch_step);
    else if (!strcmp(action, "disown"))
        failed = in_hierarchies(spank, ac, av, pid, disown);
    else if (!strcmp(action, "forget"))
        failed = forget(argument(ac, av, "run", 0), job);
    else if (!strcmp(action, "hide"))
        failed = hide(ac, av);
    else if (!strcmp(action, "kill"))
        failed = pid > 1 ? kill(pid, SIGKILL) : -1;
    else if (!strcmp(action, "restore"))
        failed = restore();
    else if (!strcmp(action, "where"))
        failed = say_where(callback);
    else if (!strcmp(action, "refuse"))
        failed = 0;
    if (strcmp(action, "restore") || failed)
        say(callback, action, failed);
    if (rights != KEPT)
        start_clocks();
    return strcmp(action, "refuse") ? 0 : -1;
}

#define CALLBACK(name) \
    int slurm_spank_##name(spank_t spank, int ac, char **av) { return act(spank, #name, ac, av); }

CALLBACK(init)
CALLBACK(init_post_opt)
CALLBACK(task_init_privileged)
CALLBACK(task_init)
CALLBACK(task_post_fork)
CALLBACK(task_exit)
CALLBACK(exit)
