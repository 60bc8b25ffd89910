/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The life of a fence, for programs that load libjobfence.so: open, attach, limit, usage, freeze,
 * thaw, close. It does what the commands of these names do, see jobfence(8), and shares their
 * records. So one process may open a fence with this header, and a command may close it.
 *
 * Who may call.  Only root. Each other process gets JOBFENCE_REFUSED.
 *
 * Threads.  Each function may be called from any thread at any time. The library starts no thread and
 * no program, and leaves no descriptor open. jobfence_open and jobfence_reap may fork a child that
 * reads one file of /proc. The library waits for it, and for no other child.
 *
 * Output.  Nothing is written to stdout or stderr. What goes wrong is said by jobfence_last_error.
 * What an administrator should know is said to the function that jobfence_set_log was given.
 *
 * Time.  Each call ends. The bound stands with each function. It does not hold where the kernel
 * blocks a single system call. It does not hold either where the node's user database blocks: that
 * one is asked only if a section of the configuration names a user or a group, or if io_max names a
 * disk or a path.
 *
 * Repeating.  Each call may be repeated, also by another process, also while the first still runs.
 *
 * Texts.  Each text that comes in is UTF-8, ends with a zero byte, and stays the caller's. Each text
 * that goes out through a `char **` is the caller's, who gives it back to jobfence_free. Such a
 * pointer is set to NULL before anything else is done. Each `char **` may be NULL: then the text is
 * not made.
 *
 * Structs.  The first member is the size: the caller sets it to sizeof of the struct, and each member
 * that it does not use to zero. A later release adds members at the end. A caller that was compiled
 * before gives a smaller size, and the new members count as zero. A caller that was compiled later
 * gives a larger size. This is accepted if what this release does not know is zero, and refused as
 * JOBFENCE_USAGE if it is not. There is no padding in a struct.
 *
 * Upgrade.  Functions, members and numbers keep their meaning in every release. If something is
 * added, the number of the version becomes larger.
 */
#ifndef JOBFENCE_H
#define JOBFENCE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. Compare it with jobfence_abi_version(): a library with a smaller
 * number lacks something of this header. */
#define JOBFENCE_ABI_VERSION 1

/* What a function returns. Zero: it is done. */
#define JOBFENCE_OK 0
/* The configuration says Mode=off. Nothing was done, and the job is to go on. */
#define JOBFENCE_OFF 1
/* Nothing was done, and the job is to go on without a fence: something has failed, and the
 * configuration bears that (OnError=warn or Mode=observe). */
#define JOBFENCE_UNFENCED 2
/* The call itself is wrong: NULL where a text is needed, a number out of its range, the wrong size
 * of a struct. The program that calls has a mistake. */
#define JOBFENCE_USAGE (-1)
/* The job must not go on, or the call is not allowed: a limit could not be set, the configuration
 * has a mistake, the process is another user's, what the job's user asks for is not understood. It
 * would be so again. */
#define JOBFENCE_REFUSED (-2)
/* There is no such fence. */
#define JOBFENCE_NO_FENCE (-3)
/* It could not be done: the kernel has refused, a file is missing, the time was over. It may be
 * tried again. */
#define JOBFENCE_SYSTEM (-4)
/* A mistake in jobfence. What the call has done is unknown: close the fence. */
#define JOBFENCE_INTERNAL (-5)

/* The first argument of the function that jobfence_set_log is given. */
#define JOBFENCE_LOG_ERROR 1
#define JOBFENCE_LOG_WARNING 2
#define JOBFENCE_LOG_INFO 3
#define JOBFENCE_LOG_DEBUG 4

/* For jobfence_attach: the process is none of the step's tasks. */
#define JOBFENCE_NO_TASK (-1)
/* For jobfence_attach: also a process of another user than the job's. */
#define JOBFENCE_ANY_USER 1u

/* Which fence. */
struct jobfence_fence {
    size_t size;
    /* The job, as the batch system writes it: 1 to 1024 bytes. Needed. */
    const char *job;
    /* The step of it, 1 to 1024 bytes. NULL: each step; in jobfence_open the step "0". */
    const char *step;
    /* Which run of the job, where it runs again under the same name: 1 to 4294967295. Zero: each
     * run; in jobfence_open the run 1. */
    uint32_t run;
    /* Zero. */
    uint32_t reserved;
};

/* For the member cpus of the next struct: the job was granted none. Zero would be: nothing is known. */
#define JOBFENCE_ZERO_CPUS UINT64_MAX

/* What a job is limited by. NULL or zero: unknown, or not limited, or not asked for. */
struct jobfence_grant {
    size_t size;
    /* CPUs (hardware threads) on this node, in thousandths: 1 to 65536000, or JOBFENCE_ZERO_CPUS. Such a
     * job gets what the key ZeroCPUs of jobfence.conf(5) says. */
    uint64_t cpus;
    /* Memory on this node in bytes: at least 1048576. If it is zero, the key DefaultRAMSpace holds. */
    uint64_t memory;
    /* By these, sections of the configuration are chosen. What is unknown counts as the strictest
     * that it could be. The user's name; NULL: the node's user database is asked by the number. */
    const char *user;
    /* The partition or queue. */
    const char *partition;
    /* The quality of service. */
    const char *qos;
    /* The account. It and the project are what the job's user has written: without TrustAccount=yes in
     * jobfence.conf(5), they count as unknown for sections. */
    const char *account;
    /* What the job's user asks for, in the words of the options --cpu-limit, --cpu-burst, --mem-high,
     * --pids-max and --io-max of jobfence(8). It can only lower limits. Paths in io_max are looked up
     * with the rights of the job's user. What is not understood is refused. */
    const char *cpu_limit;
    const char *cpu_burst;
    const char *mem_high;
    const char *pids_max;
    const char *io_max;
    /* More by which sections are chosen. The project; an empty text: the job is known to have none. */
    const char *project;
    /* The type of the job's vnodes on this node, such as "gpu". Several types have commas between them.
     * An empty text: they are known to have none. */
    const char *vnode_type;
    /* Memory and swap together on this node in bytes: at least 1048576. What is not memory of it may be
     * swap, and AllowedSwapSpace of jobfence.conf(5) does not count. If it is less than memory, so is the
     * memory. If memory is zero, all of it is memory. If it is zero, AllowedSwapSpace counts. */
    uint64_t memory_swap;
    /* GPUs of this node: 0 to 1024. Which they are is chosen here, among those that GPUDevice of
     * jobfence.conf(5) names and no other fence has. All fences of a run of the job have the same ones. */
    uint64_t gpus;
    /* Huge pages on this node, as 2M:4G,1G:0: for each size how much memory may be in them, see MaxHugePages
     * of jobfence.conf(5). It counts only with ConstrainHugePages there. */
    const char *huge_pages;
    /* What the job's user calls it, for the card and the usage log. Of a longer text, the first 200 bytes count. */
    const char *job_name;
};

/* For a member of the next struct: the kernel does not say it. */
#define JOBFENCE_UNKNOWN UINT64_MAX

/* What fences have used together. */
struct jobfence_totals {
    size_t size;
    /* So many fences there are. */
    uint64_t fences;
    /* CPU time, user and system together, in microseconds. If no step was said, that of steps of the
     * job that were closed before counts, too, as long as the job has had a fence all the time. */
    uint64_t cpu_us;
    /* So long the quota has held back processes that could have run, in microseconds. */
    uint64_t throttled_us;
    /* The most memory that the whole job had in use at once, in bytes, other steps included. */
    uint64_t memory_peak;
    /* The same with swap. On cgroup v2 it can be more than that, since memory and swap have peaks of
     * their own there. */
    uint64_t memory_swap_peak;
    /* Processes that the kernel has killed for lack of memory. */
    uint64_t oom_kills;
    /* So often no process could be started, for the limit of their number. */
    uint64_t forks_refused;
    /* Bytes read from disks, and written to them. */
    uint64_t read_bytes;
    uint64_t written_bytes;
};

/* For the member flags of the next struct. The job is one of many that are alike: a task of an array. */
#define JOBFENCE_ARRAY_TASK 1u
/* For the same: the job's user can read more than ASCII. */
#define JOBFENCE_UTF8 2u

/* How a job has ended. Zero: not known, but for exit_status. */
struct jobfence_ended {
    size_t size;
    /* The exit status. JOBFENCE_UNKNOWN: not known. */
    uint64_t exit_status;
    /* The signal that has ended the job. Then exit_status does not count. */
    uint64_t exit_signal;
    /* So long the job ran, in seconds. If it is not known, the time since its fence was made counts. */
    uint64_t wall_seconds;
    /* So long it might have run, in seconds. */
    uint64_t time_limit_seconds;
    /* On so many nodes it ran. */
    uint64_t nodes;
    /* So many tasks it had on this node. */
    uint64_t tasks;
    /* JOBFENCE_ARRAY_TASK, JOBFENCE_UTF8, both together, or zero. */
    uint64_t flags;
};

/* What jobfence_reap has done. */
struct jobfence_reaped {
    size_t size;
    /* So many fences were removed. */
    uint32_t removed;
    /* So many have a holder that lives, or may live. */
    uint32_t alive;
    /* At so many another janitor is at work. */
    uint32_t busy;
    /* So many could not be removed. */
    uint32_t failed;
};

/* The version of the library: JOBFENCE_ABI_VERSION of its header. */
uint32_t jobfence_abi_version(void);

/* What the last call in this thread has said beside its number: why it has failed, or why the job
 * goes on without a fence. It is empty after JOBFENCE_OK, and never NULL. It has at most 4095 bytes,
 * and may have several lines. It is valid until the next call in this thread of a function that
 * returns an int. */
const char *jobfence_last_error(void);

/* Gives back a text of this library. NULL is allowed. */
void jobfence_free(char *text);

/* Has each line of the log given to a function: one of the numbers JOBFENCE_LOG_..., the line without
 * its end, and data. The line is valid during that call. The function is called in the thread that
 * has called the library, from several threads at once if they do. It must return, and neither throw
 * nor jump out. What the library would say while the function itself calls it is not said. NULL:
 * nothing is said any more, which is also so at first. Another thread may still be in the earlier
 * function: so data must stay valid until the calls that had begun before have ended.
 * JOBFENCE_REFUSED: the library says its lines elsewhere, since this process is Slurm's or has opened
 * a session of PAM's with it.
 * Time: at once. */
int jobfence_set_log(void (*function)(int level, const char *line, void *data), void *data);

/* Makes a fence and limits it. No process is in it yet. If it is there already, it is limited to what
 * is granted now, and what is limited no more keeps its last limit.
 *
 * config   The configuration file, an absolute path. NULL: the file that jobfence.conf(5) says. Each
 *          call about a fence needs the same file.
 * uid      The job's user.
 * holder   How long the fence lives, if nothing closes it: "pid:NUMBER" (while this process lives),
 *          "scheduler:OpenPBS" (while MoM has this run of the job in its spool, also while MoM
 *          itself does not run), or "manual" (until it is closed, or the node boots). NULL: "manual".
 *          "unit:NAME" is JOBFENCE_REFUSED: for it a program would be started. 'jobfence open'
 *          makes such a fence, and the other functions go on with it.
 * grant    NULL: nothing is known, and what the configuration says is the limit.
 * path     Is set to the directory of the fence, below the root of each hierarchy.
 *
 * JOBFENCE_REFUSED, too, if the fence that is there has another user or another holder, or is not
 * whole since its opening was interrupted: then close it, and open it again.
 * JOBFENCE_SYSTEM, too, if too few GPUs are free: the fence of another job may be about to go.
 * Time: at most 20 seconds and CleanupTimeout of jobfence.conf(5), usually a few milliseconds. */
int jobfence_open(const char *config, const struct jobfence_fence *fence, uint32_t uid, const char *holder,
                  const struct jobfence_grant *grant, char **path);

/* The same, and says which GPUs the job's programs are to see.
 *
 * visible  Is set to what the environment variable CUDA_VISIBLE_DEVICES of the fence's processes is to
 *          be: UUIDs, or numbers that are right if CUDA_DEVICE_ORDER is PCI_BUS_ID. It is empty if the
 *          job has no GPU. It stays NULL if the variable is not to be set, since GPUDevice of
 *          jobfence.conf(5) names no GPUs of NVIDIA's.
 */
int jobfence_open_gpus(const char *config, const struct jobfence_fence *fence, uint32_t uid, const char *holder,
                       const struct jobfence_grant *grant, char **path, char **visible);

/* Puts a process into the one fence that is meant. It is safe to repeat. What the process has started
 * before stays where it is, what it starts afterwards is in the fence.
 *
 * pid      The process, larger than 1. A process cannot put itself in.
 * task     Its number as a task of the step, 0 to 4294967295, or JOBFENCE_NO_TASK. Each task has
 *          limits of its own.
 * flags    JOBFENCE_ANY_USER, or zero: then a process of another user than the job's is refused.
 *
 * JOBFENCE_REFUSED, too, if more than one fence is meant.
 * Time: at most 10 seconds, usually a few milliseconds. */
int jobfence_attach(const char *config, const struct jobfence_fence *fence, int32_t pid, int64_t task, uint32_t flags);

/* Changes the limits of these fences. What is limited no more keeps its last limit. A fence
 * keeps its GPUs, or the first of them if fewer are granted now; more are never chosen for it.
 * Time: at most 20 seconds, usually a few milliseconds. */
int jobfence_limit(const char *config, const struct jobfence_fence *fence, const struct jobfence_grant *grant);

/* Says what these fences have used, and what they may use.
 *
 * text     In sentences, a line for each fence and for each limit at which it was stopped.
 * json     As 'jobfence usage --json' does, see jobfence(8).
 *
 * Time: it waits for nothing, and usually takes a few milliseconds. */
int jobfence_usage(const char *config, const struct jobfence_fence *fence, char **text, char **json);

/* Adds up what these fences have used, for a program that wants numbers and no text.
 *
 * totals   Is filled as far as its size reaches. What the caller has set behind its first member is
 *          not read, except what this release does not know.
 *
 * Time: it waits for nothing, and usually takes less than a millisecond. */
int jobfence_total(const char *config, const struct jobfence_fence *fence, struct jobfence_totals *totals);

/* Makes the job's card: what it has used on this node of what it was granted, and what its user can
 * ask for next time. It is for the job's output. The fences must still be there.
 *
 * fence    The member step does not matter: the card is about the whole job.
 * grant    As it was in jobfence_open.
 * ended    NULL: nothing is known of the end.
 * text     Lines of at most 80 columns, the last one without an end. It is empty if this job is to have
 *          no card: see UsageCard of jobfence.conf(5).
 *
 * Time: it waits for nothing, and usually takes a few milliseconds. */
int jobfence_card(const char *config, const struct jobfence_fence *fence, const struct jobfence_grant *grant,
                  const struct jobfence_ended *ended, char **text);

/* Stops all processes of these fences where they are.
 * Time: at most 10 seconds. JOBFENCE_SYSTEM if they have not stopped by then. */
int jobfence_freeze(const char *config, const struct jobfence_fence *fence);

/* Lets them go on.
 * Time: at most 10 seconds. */
int jobfence_thaw(const char *config, const struct jobfence_fence *fence);

/* Kills what is left in these fences and removes them. JOBFENCE_OK, too, if there is none.
 *
 * text     As in jobfence_usage, of the fences that were closed now. It is empty if there was none.
 * json     As in jobfence_usage. A fence whose usage could not be read any more is not in it.
 *
 * Both texts are made also if some of the fences could not be closed, which is JOBFENCE_SYSTEM.
 * Time: at most CleanupTimeout of jobfence.conf(5), 10 seconds, and half a second for each fence. */
int jobfence_close(const char *config, const struct jobfence_fence *fence, char **text, char **json);

/* Removes the fences of holders that have gone. Those of units of systemd's are left to 'jobfence
 * reap' and to jobfence.service, since this function starts no program.
 *
 * patience_ms  So long it waits in all until what was killed has gone: 1 to 60000. Zero: 10000.
 * reaped       Is filled as far as its size reaches. NULL is allowed. What the caller has set behind
 *              its first member is not read, except what this release does not know.
 *
 * JOBFENCE_SYSTEM if something could not be removed. The rest is removed all the same.
 * Time: what patience_ms says, and about 1 second. */
int jobfence_reap(const char *config, uint32_t patience_ms, struct jobfence_reaped *reaped);

#ifdef __cplusplus
}
#endif

#endif
