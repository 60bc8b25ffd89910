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
 *     rmdir         the step's directories are removed; top=MOUNT,ROOT (more than once) says where the hierarchies are
 *     threaded      the job's cgroup2 directory becomes threaded, and then its steps' take no process
 *     forget        the job's records in run=DIRECTORY are removed
 *     kill          the task is killed
 *     refuse        this callback fails
 *     where         does nothing: says in which mount namespace the callback runs
 *     restore       undoes the first three
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

const char plugin_name[] = "saboteur";
const char plugin_type[] = "spank";
unsigned int plugin_version = SLURM_VERSION_NUMBER;
const unsigned int spank_plugin_version = 1;

/* One file for every release: see src/entry/spank/version.rs. */
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
    if (setrlimit(RLIMIT_NOFILE, &limit))
        return -1;
    while (n_fillers < 4096 && (fillers[n_fillers] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        n_fillers++;
    if (errno != EMFILE || n_fillers < spare)
        return -1;
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

/* ---- the rest ------------------------------------------------------------------------------------------------------- */

static int proc_is_hidden;

static int hide_proc(void)
{
    /* In a mount namespace of this thread's own: nobody else is to miss it. */
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("none", "/proc", "tmpfs", 0, NULL))
        return -1;
    proc_is_hidden = 1;
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
    return failed;
}

/* The step's directories by the variable that jobfence has set, in each hierarchy. */
static int in_directories(spank_t spank, int ac, char **av, int (*act)(const char *))
{
    char path[PATH_MAX], place[2 * PATH_MAX];
    if (spank_getenv(spank, "JOBFENCE_CGROUP", path, sizeof path) != ESPANK_SUCCESS) {
        errno = ENOENT;
        return -1;
    }
    int done = 0;
    for (int i = 0; argument(ac, av, "top", i); i++) {
        char *top = strdup(argument(ac, av, "top", i)), *root = strchr(top, ',');
        if (root)
            *root++ = 0;
        size_t above = root && strcmp(root, "/") && !strncmp(path, root, strlen(root)) ? strlen(root) : 0;
        snprintf(place, sizeof place, "%s%s", top, path + above);
        free(top);
        if (act(place) == 0)
            done++;
        else if (errno != ENOENT)
            return -1;
    }
    return done ? 0 : -1;
}

static int make_threaded(const char *place)
{
    char file[2 * PATH_MAX + 16];
    snprintf(file, sizeof file, "%s/../cgroup.type", place);
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int failed = write(fd, "threaded", 8) != 8;
    close(fd);
    return failed ? -1 : 0;
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
    errno = 0;
    if (!strcmp(action, "descriptors"))
        failed = exhaust(spare && !strcmp(spare, "step") ? (int)step : spare ? atoi(spare) : 0);
    else if (!strcmp(action, "noproc"))
        failed = hide_proc();
    else if (!strcmp(action, "panic"))
        failed = take_clock();
    else if (!strcmp(action, "rmdir"))
        failed = in_directories(spank, ac, av, rmdir);
    else if (!strcmp(action, "threaded"))
        failed = in_directories(spank, ac, av, make_threaded);
    else if (!strcmp(action, "forget"))
        failed = forget(argument(ac, av, "run", 0), job);
    else if (!strcmp(action, "kill")) {
        pid_t pid = 0;
        spank_get_item(spank, S_TASK_PID, &pid);
        failed = pid > 1 ? kill(pid, SIGKILL) : -1;
    } else if (!strcmp(action, "restore"))
        failed = restore();
    else if (!strcmp(action, "where"))
        failed = say_where(callback);
    else if (!strcmp(action, "refuse"))
        failed = 0;
    if (strcmp(action, "restore") || failed)
        say(callback, action, failed);
    return strcmp(action, "refuse") ? 0 : -1;
}

#define CALLBACK(name) \
    int slurm_spank_##name(spank_t spank, int ac, char **av) { return act(spank, #name, ac, av); }

CALLBACK(init)
CALLBACK(init_post_opt)
CALLBACK(task_init_privileged)
CALLBACK(task_post_fork)
CALLBACK(task_exit)
CALLBACK(exit)
