// SPDX-License-Identifier: GPL-2.0-or-later
// Stands for NVIDIA's libnvidia-ml.so.1: it says what the file of JOBFENCE_TEST_NVML_SAYS has, one line each, read at every call.
//
//   FUNCTION CODE            the function returns this; 'hang': it never returns; 'none' cannot be had: see FUNCTIONS below
//   count N                  so many GPUs; their minors are 0 to N-1
//   percent|memory|total|energy|slowed|mig|accounting MINOR VALUE
//   process MINOR PID BYTES
//   record MINOR PID BEGUN_US PERCENT BYTES MILLISECONDS IS_RUNNING
//
// Each call is noted in the file of JOBFENCE_TEST_NVML_CALLED, by its name.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long ull;

static FILE *said(void) {
    const char *path = getenv("JOBFENCE_TEST_NVML_SAYS");
    return path ? fopen(path, "r") : NULL;
}

// The code that a function returns.
static int begin(const char *function) {
    const char *path = getenv("JOBFENCE_TEST_NVML_CALLED");
    FILE *called = path ? fopen(path, "a") : NULL;
    if (called) {
        fprintf(called, "%s\n", function);
        fclose(called);
    }
    FILE *file = said();
    char line[256], name[128], code[64];
    int found = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%127s %63s", name, code) != 2 || strcmp(name, function)) continue;
        if (!strcmp(code, "hang")) for (;;) pause();
        found = atoi(code);
    }
    if (file) fclose(file);
    return found;
}

// The value of a GPU; 3 is NVML_ERROR_NOT_SUPPORTED.
static int value(const char *what, void *device, ull *value) {
    FILE *file = said();
    char line[256], name[64];
    ull minor, number;
    int code = 3;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%63s %llu %llu", name, &minor, &number) == 3 && !strcmp(name, what) && minor + 1 == (uintptr_t)device) {
            *value = number;
            code = 0;
        }
    }
    if (file) fclose(file);
    return code;
}

#define BEGIN(function) do { int code = begin(function); if (code) return code; } while (0)

int nvmlInit_v2(void) { return begin("nvmlInit_v2"); }

int nvmlDeviceGetCount_v2(unsigned *count) {
    BEGIN("nvmlDeviceGetCount_v2");
    FILE *file = said();
    char line[256];
    *count = 0;
    while (file && fgets(line, sizeof line, file)) sscanf(line, "count %u", count);
    if (file) fclose(file);
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned at, void **device) {
    BEGIN("nvmlDeviceGetHandleByIndex_v2");
    *device = (void *)(uintptr_t)(at + 1);
    return 0;
}

int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) {
    BEGIN("nvmlDeviceGetMinorNumber");
    *minor = (unsigned)(uintptr_t)device - 1;
    return 0;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    BEGIN("nvmlDeviceGetUUID");
    snprintf(text, length, "GPU-%u", (unsigned)(uintptr_t)device - 1);
    return 0;
}

struct rates { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *device, struct rates *rates) {
    BEGIN("nvmlDeviceGetUtilizationRates");
    ull number;
    int code = value("percent", device, &number);
    if (!code) *rates = (struct rates){(unsigned)number, 0};
    return code;
}

// Ten samples of the same, the last now.
struct sample { ull microseconds; union { unsigned number; double real; ull other; } value; };
int nvmlDeviceGetSamples(void *device, int what, ull seen, int *kind, unsigned *count, struct sample *samples) {
    BEGIN("nvmlDeviceGetSamples");
    ull number;
    int code = value("percent", device, &number);
    if (code || what != 1) return code ? code : 2;
    *kind = 1;
    if (!samples) {
        *count = 10;
        return 0;
    }
    for (unsigned at = 0; at < *count; at++) {
        samples[at].microseconds = seen + 1 + at;
        samples[at].value.number = (unsigned)number;
    }
    return 0;
}

struct memory { ull total, free, used; };
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    BEGIN("nvmlDeviceGetMemoryInfo");
    int code = value("memory", device, &memory->used);
    return code ? code : value("total", device, &memory->total);
}

struct memory2 { unsigned version; ull total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory2 *memory) {
    BEGIN("nvmlDeviceGetMemoryInfo_v2");
    if (memory->version != (2u << 24 | sizeof *memory)) return 25;
    int code = value("memory", device, &memory->used);
    return code ? code : value("total", device, &memory->total);
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, ull *energy) {
    BEGIN("nvmlDeviceGetTotalEnergyConsumption");
    return value("energy", device, energy);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, ull *reasons) {
    BEGIN("nvmlDeviceGetCurrentClocksThrottleReasons");
    return value("slowed", device, reasons);
}

int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) {
    BEGIN("nvmlDeviceGetMigMode");
    ull number = 0;
    value("mig", device, &number);
    *now = *later = (unsigned)number;
    return 0;
}

struct process { unsigned pid; ull memory; unsigned gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *all) {
    BEGIN("nvmlDeviceGetComputeRunningProcesses_v3");
    FILE *file = said();
    char line[256];
    ull minor, pid, memory;
    unsigned found = 0, room = *count;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "process %llu %llu %llu", &minor, &pid, &memory) != 3 || minor + 1 != (uintptr_t)device) continue;
        if (found < room) all[found] = (struct process){(unsigned)pid, memory, ~0u, ~0u};
        found++;
    }
    if (file) fclose(file);
    *count = found;
    return found > room ? 7 : 0;
}

int nvmlDeviceGetAccountingMode(void *device, unsigned *mode) {
    BEGIN("nvmlDeviceGetAccountingMode");
    ull number;
    int code = value("accounting", device, &number);
    *mode = (unsigned)number;
    return code;
}

int nvmlDeviceSetAccountingMode(void *device, unsigned mode) {
    (void)device;
    (void)mode;
    return begin("nvmlDeviceSetAccountingMode");
}

struct stats { unsigned gpu, memory; ull most, milliseconds, begun; unsigned is_running, reserved[5]; };

// The record at a place, or that of a pid.
static int record(void *device, unsigned at, unsigned wanted, unsigned *pid, struct stats *stats) {
    FILE *file = said();
    char line[256];
    ull minor;
    unsigned number = 0;
    int found = 0;
    struct stats one = {0};
    while (file && !found && fgets(line, sizeof line, file)) {
        if (sscanf(line, "record %llu %u %llu %u %llu %llu %u", &minor, pid, &one.begun, &one.gpu, &one.most, &one.milliseconds,
                   &one.is_running) != 7 || minor + 1 != (uintptr_t)device) continue;
        found = wanted ? *pid == wanted : number == at;
        number++;
    }
    if (file) fclose(file);
    if (stats) *stats = one;
    return found;
}

int nvmlDeviceGetAccountingPids(void *device, unsigned *count, unsigned *pids) {
    BEGIN("nvmlDeviceGetAccountingPids");
    unsigned room = *count, pid;
    for (*count = 0; record(device, *count, 0, &pid, NULL); ++*count) if (*count < room) pids[*count] = pid;
    return *count > room ? 7 : 0;
}

int nvmlDeviceGetAccountingStats(void *device, unsigned pid, struct stats *stats) {
    BEGIN("nvmlDeviceGetAccountingStats");
    unsigned found;
    return record(device, 0, pid, &found, stats) ? 0 : 6;
}
