/* A stand-in for NVIDIA's libnvidia-ml.so.1: GPUs that a text file describes, for machines without one.

The environment variable NVML_STANDIN names the file. It is read at the first call and again after each change, so that
a GPU can fail during a test. Without the variable, nvmlInit reports that no driver is loaded. Each line is a statement;
`#` begins a comment. Values have no spaces: %20 and the like stand for any byte. GPU is a number, or `*` for all.

  gpu N KEY=VALUE...             GPU N exists (0 to 15). Keys with their defaults:
      name=Stand-in%20GPU uuid=GPU-00000000-0000-0000-0000-00000000000N
      memory_total=17179869184 memory_used=1073741824 memory_reserved=268435456   bytes
      power=200000 power_limit=700000                   mW
      reasons=0                                         clock event reasons, NVML's bit mask
      sm=80 tensor=40 dram=50                           percent of busy time that GPM reports
      sample_ms=166 samples=120                         period and number of the utilisation samples that are kept
      ring=FILE                                         the same as `trace N ring FILE`
  trace GPU steady PERCENT       busy for this share of the time; `steady 100` is the default
  trace GPU ring FILE            driven by a live program, through a mapped file. Little-endian: 8 bytes "NVMLRING",
                                 uint32 capacity, uint32 period_us, uint64 count of all samples ever written, then
                                 `capacity` entries of (uint64 end time in us of CLOCK_REALTIME, uint32 percent 0-100,
                                 uint32 zero); sample i is at i % capacity
  pids GPU 1,2,3                 its processes; `pids GPU -` for none
  gpm GPU off                    a GPU before Hopper
  vanish GPU                     it fell off the bus: every call returns NVML_ERROR_GPU_IS_LOST
  error FUNCTION GPU CODE        FUNCTION (no _v2) fails with CODE: the name of an NVML_ERROR_ in the table below, or a
                                 number. NVML_ERROR_FUNCTION_NOT_FOUND simulates a driver that is too old

GPM metrics are means between two samples, which must be 100 ms apart. nvml_standin_samples() counts unfreed ones. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum {
  OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
  DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, VERSION_MISMATCH = 25
};

static const struct { const char *name; int code; } CODES[] = {
  {"UNINITIALIZED", 1}, {"INVALID_ARGUMENT", 2}, {"NOT_SUPPORTED", 3}, {"NO_PERMISSION", 4}, {"NOT_FOUND", 6},
  {"DRIVER_NOT_LOADED", 9}, {"TIMEOUT", 10}, {"FUNCTION_NOT_FOUND", 13}, {"GPU_IS_LOST", 15}, {"RESET_REQUIRED", 16},
  {"LIB_RM_VERSION_MISMATCH", 18}, {"NO_DATA", 21}, {"UNKNOWN", 999}
};

#define GPUS 16
#define ERRORS 64
#define PIDS 64

typedef struct { int gpu; } device;

typedef struct {
  int there, lost, gpm, in_ring, pid_count;
  char name[96], uuid[80], ring[512];
  uint64_t memory_total, memory_used, memory_reserved, reasons;
  unsigned power, power_limit, sample_ms, samples, pids[PIDS];
  double level, sm, tensor, dram; /* percent */
} gpu;

typedef struct { char function[64]; int gpu, code; } rule; /* gpu -1: all of them, and calls without a GPU */

static struct {
  gpu gpus[GPUS];
  rule rules[ERRORS];
  int rule_count;
} script;
static device devices[GPUS];
static int started;
static char read_path[512];
static struct stat read_stat;
static int live_samples;

int nvml_standin_samples(void) { return live_samples; }

static uint64_t now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* ---- the script ---- */

static void unescape(char *to, size_t size, const char *from) {
  size_t at = 0;
  while (*from && at + 1 < size) {
    unsigned byte;
    if (*from == '%' && sscanf(from + 1, "%2x", &byte) == 1) to[at++] = (char)byte, from += 3;
    else to[at++] = *from++;
  }
  to[at] = 0;
}

#define KEY(name, kind) {#name, offsetof(gpu, name), kind}
static const struct { const char *name; size_t at; enum { U32, U64, REAL } kind; } KEYS[] = {
  KEY(memory_total, U64), KEY(memory_used, U64), KEY(memory_reserved, U64), KEY(power, U32), KEY(power_limit, U32),
  KEY(reasons, U64), KEY(sm, REAL), KEY(tensor, REAL), KEY(dram, REAL), KEY(sample_ms, U32), KEY(samples, U32)
};

static void set(gpu *g, const char *key, const char *value) {
  if (!strcmp(key, "name")) { unescape(g->name, sizeof g->name, value); return; }
  if (!strcmp(key, "uuid")) { unescape(g->uuid, sizeof g->uuid, value); return; }
  if (!strcmp(key, "ring")) { unescape(g->ring, sizeof g->ring, value), g->in_ring = 1; return; }
  for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
    if (strcmp(key, KEYS[i].name)) continue;
    void *at = (char *)g + KEYS[i].at;
    if (KEYS[i].kind == REAL) *(double *)at = strtod(value, NULL);
    else if (KEYS[i].kind == U64) *(uint64_t *)at = strtoull(value, NULL, 0);
    else *(unsigned *)at = (unsigned)strtoll(value, NULL, 0);
    if (!g->sample_ms) g->sample_ms = 1;
    return;
  }
  fprintf(stderr, "nvml stand-in: gpu has no %s\n", key);
}

static void add_gpu(int number, char **words) {
  gpu *g = &script.gpus[number];
  g->there = g->gpm = 1;
  snprintf(g->name, sizeof g->name, "Stand-in GPU");
  snprintf(g->uuid, sizeof g->uuid, "GPU-00000000-0000-0000-0000-%012d", number);
  g->level = 100;
  g->memory_total = 1ull << 34, g->memory_used = 1ull << 30, g->memory_reserved = 1ull << 28;
  g->power = 200000, g->power_limit = 700000;
  g->sample_ms = 166, g->samples = 120, g->sm = 80, g->tensor = 40, g->dram = 50;
  for (; *words; words++) {
    char *value = strchr(*words, '=');
    if (value) *value = 0, set(g, *words, value + 1);
  }
}

static void add_trace(gpu *g, char **words) {
  if (!words[0] || !words[1]) return;
  g->in_ring = !strcmp(words[0], "ring");
  if (g->in_ring) unescape(g->ring, sizeof g->ring, words[1]);
  else g->level = strtod(words[1], NULL);
}

static void add_pids(gpu *g, const char *list) {
  char *end;
  for (g->pid_count = 0; g->pid_count < PIDS; list = end + 1) {
    unsigned long pid = strtoul(list, &end, 10);
    if (end == list) return;
    g->pids[g->pid_count++] = (unsigned)pid;
    if (*end != ',') return;
  }
}

static int code_of(const char *name) {
  if (!strncmp(name, "NVML_ERROR_", 11)) name += 11;
  for (size_t i = 0; i < sizeof CODES / sizeof *CODES; i++)
    if (!strcmp(name, CODES[i].name)) return CODES[i].code;
  return atoi(name);
}

static void statement(char **words, int count) {
  const char *verb = words[0];
  if (!strcmp(verb, "error") && count > 3 && script.rule_count < ERRORS) {
    rule *r = &script.rules[script.rule_count++];
    snprintf(r->function, sizeof r->function, "%s", words[1]);
    r->gpu = *words[2] == '*' ? -1 : atoi(words[2]);
    r->code = code_of(words[3]);
  } else if (count > 1) {
    int first = *words[1] == '*' ? 0 : atoi(words[1]), last = *words[1] == '*' ? GPUS - 1 : first;
    for (int i = first; i <= last && i >= 0 && i < GPUS; i++) {
      gpu *g = &script.gpus[i];
      if (!strcmp(verb, "gpu")) add_gpu(i, words + 2);
      else if (!strcmp(verb, "trace")) add_trace(g, words + 2);
      else if (!strcmp(verb, "vanish")) g->lost = 1;
      else if (!strcmp(verb, "gpm")) g->gpm = count < 3 || strcmp(words[2], "off");
      else if (!strcmp(verb, "pids") && count > 2) add_pids(g, words[2]);
      else fprintf(stderr, "nvml stand-in: what is '%s'?\n", verb);
    }
  }
}

/* Read the script if it is new or has changed. One that is being written is used as it is, and read again later. */
static int refresh(void) {
  const char *path = getenv("NVML_STANDIN");
  struct stat found;
  char line[4096], *words[64];
  if (!path || stat(path, &found)) return 0;
  if (!strcmp(path, read_path) && found.st_mtim.tv_sec == read_stat.st_mtim.tv_sec && found.st_ino == read_stat.st_ino &&
      found.st_mtim.tv_nsec == read_stat.st_mtim.tv_nsec && found.st_size == read_stat.st_size) return 1;
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  memset(&script, 0, sizeof script);
  while (fgets(line, sizeof line, file)) {
    int count = 0;
    char *rest = NULL;
    line[strcspn(line, "#\n")] = 0;
    for (char *word = strtok_r(line, " \t", &rest); word && count < 63; word = strtok_r(NULL, " \t", &rest)) words[count++] = word;
    words[count] = NULL;
    if (count) statement(words, count);
  }
  fclose(file);
  snprintf(read_path, sizeof read_path, "%s", path);
  read_stat = found;
  return 1;
}

/* ---- what the GPUs do ---- */

typedef struct { uint64_t end; uint32_t busy, zero; } entry;
typedef struct { char magic[8]; uint32_t capacity, period_us; uint64_t count; } ring_header;

/* The entries of a ring, oldest first; the caller frees them. The oldest are left out, because the writer may be at
work. */
static entry *read_ring(const gpu *g, size_t *count, uint32_t *period_us) {
  ring_header header;
  entry *raw = NULL, *sorted = NULL;
  *count = 0;
  FILE *file = fopen(g->ring, "rb");
  if (!file) return NULL;
  if (fread(&header, sizeof header, 1, file) == 1 && !memcmp(header.magic, "NVMLRING", 8) && header.capacity &&
      header.capacity < 1u << 20 && (raw = malloc(header.capacity * sizeof *raw)) && (sorted = malloc(header.capacity * sizeof *raw)) &&
      fread(raw, sizeof *raw, header.capacity, file) == header.capacity) {
    uint64_t kept = header.count < header.capacity ? header.count : header.capacity - header.capacity / 8;
    *period_us = header.period_us;
    for (uint64_t i = header.count - kept; i < header.count; i++) {
      entry e = raw[i % header.capacity];
      if (e.busy <= 100 && (!*count || e.end > sorted[*count - 1].end)) sorted[(*count)++] = e;
    }
  }
  free(raw);
  fclose(file);
  return sorted;
}

/* Mean percent between two times, in us */
static double busy_between(const gpu *g, uint64_t from, uint64_t to) {
  if (to <= from) return 0;
  if (!g->in_ring) return g->level;
  size_t count;
  uint32_t period = 0;
  double sum = 0, weight = 0;
  entry *entries = read_ring(g, &count, &period);
  for (size_t i = 0; i < count; i++) {
    uint64_t begin = entries[i].end - period, low = begin > from ? begin : from, high = entries[i].end < to ? entries[i].end : to;
    if (high > low) sum += (double)(high - low) * entries[i].busy, weight += (double)(high - low);
  }
  free(entries);
  return weight > 0 ? sum / weight : 0;
}

/* ---- the functions of NVML ---- */

static int refused(const char *function, int about) {
  for (int i = 0; i < script.rule_count; i++)
    if (!strcmp(script.rules[i].function, function) && (script.rules[i].gpu < 0 || script.rules[i].gpu == about)) return script.rules[i].code;
  return OK;
}

static int ready(const char *function) {
  if (!refresh()) return DRIVER_NOT_LOADED;
  if (!started) return UNINITIALIZED;
  return refused(function, -1);
}

static int find(const char *function, const device *d, const gpu **g) {
  int code = ready(function);
  if (code) return code;
  if (d < devices || d >= devices + GPUS) return INVALID_ARGUMENT;
  *g = &script.gpus[d->gpu];
  if ((*g)->lost) return GPU_IS_LOST;
  if (!(*g)->there) return INVALID_ARGUMENT;
  return refused(function, d->gpu);
}

/* Open a function about a device; errors use its name without the version. */
#define FIND(function) \
  const gpu *g; \
  int code = find(function, d, &g); \
  if (code) return code

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  if (!refresh()) return DRIVER_NOT_LOADED;
  int code = refused("nvmlInitWithFlags", -1);
  if (!code) started = 1;
  return code;
}

int nvmlShutdown(void) {
  int was = started;
  started = 0;
  return was ? OK : UNINITIALIZED;
}

const char *nvmlErrorString(int code) {
  static char text[64];
  snprintf(text, sizeof text, "stand-in error %d", code);
  return text;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  int code = ready("nvmlDeviceGetCount");
  for (*count = 0; !code && *count < GPUS && script.gpus[*count].there;) ++*count;
  return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **found) {
  int code = ready("nvmlDeviceGetHandleByIndex");
  if (code) return code;
  if (index >= GPUS || !script.gpus[index].there) return INVALID_ARGUMENT;
  if (script.gpus[index].lost) return GPU_IS_LOST;
  *found = &devices[index];
  (*found)->gpu = (int)index;
  return refused("nvmlDeviceGetHandleByIndex", (int)index);
}

int nvmlDeviceGetName(device *d, char *text, unsigned size) {
  FIND("nvmlDeviceGetName");
  snprintf(text, size, "%s", g->name);
  return OK;
}

int nvmlDeviceGetUUID(device *d, char *text, unsigned size) {
  FIND("nvmlDeviceGetUUID");
  snprintf(text, size, "%s", g->uuid);
  return OK;
}

typedef union { double d; unsigned ui; unsigned long long ull; } value;
typedef struct { unsigned long long time_us; value v; } sample;

int nvmlDeviceGetSamples(device *d, int kind, unsigned long long last, int *type, unsigned *count, sample *samples) {
  FIND("nvmlDeviceGetSamples");
  if (kind != 1) return NOT_SUPPORTED;
  unsigned room = *count, written = 0;
  *type = 1; /* NVML_VALUE_TYPE_UNSIGNED_INT */
  size_t entries = 0;
  uint32_t period = 0;
  if (g->in_ring) {
    entry *ring = read_ring(g, &entries, &period);
    if (!samples) written = (unsigned)entries;
    for (size_t i = 0; samples && i < entries && written < room; i++)
      if (ring[i].end > last) samples[written].time_us = ring[i].end, samples[written++].v.ui = ring[i].busy;
    free(ring);
  } else {
    uint64_t step = 1000ull * g->sample_ms, end = now_us() / step * step;
    if (!samples) written = g->samples;
    for (uint64_t i = g->samples; samples && i-- > 0 && written < room;)
      if (end - i * step > last) {
        samples[written].time_us = end - i * step;
        samples[written++].v.ui = (unsigned)(busy_between(g, end - (i + 1) * step, end - i * step) + 0.5);
      }
  }
  *count = written;
  return written ? OK : NOT_FOUND;
}

int nvmlDeviceGetUtilizationRates(device *d, unsigned *rates) {
  FIND("nvmlDeviceGetUtilizationRates");
  uint64_t now = now_us();
  rates[0] = (unsigned)(busy_between(g, now - 1000000, now) + 0.5);
  rates[1] = rates[0] / 2;
  return OK;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;

int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *memory) {
  FIND("nvmlDeviceGetMemoryInfo");
  if (memory->version != (sizeof *memory | 2u << 24)) return VERSION_MISMATCH;
  memory->total = g->memory_total, memory->reserved = g->memory_reserved, memory->used = g->memory_used;
  memory->free = memory->total - memory->reserved - memory->used;
  return OK;
}

/* Functions that return one number. */
#define NUMBER(function, type, expression) \
  int function(device *d, type *number) { \
    FIND(#function); \
    *number = (type)(expression); \
    return OK; \
  }
NUMBER(nvmlDeviceGetPowerUsage, unsigned, g->power)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, g->power_limit)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, g->reasons)

typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } process;

int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *count, process *processes) {
  FIND("nvmlDeviceGetComputeRunningProcesses");
  unsigned found = (unsigned)g->pid_count, room = *count;
  *count = found;
  if (found > room || (found && !processes)) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < found; i++) processes[i] = (process){g->pids[i], 1ull << 20, ~0u, ~0u};
  return OK;
}

/* ---- GPM ---- */

typedef struct { int gpu; uint64_t time_us; } gpm_sample;
typedef struct { unsigned id; int code; double value; const char *short_name, *long_name, *unit; } metric;
typedef struct { unsigned version, count; gpm_sample *first, *second; metric metrics[]; } metrics;

int nvmlGpmQueryDeviceSupport(device *d, unsigned *support) {
  FIND("nvmlGpmQueryDeviceSupport");
  if (support[0] != 1) return VERSION_MISMATCH;
  support[1] = (unsigned)g->gpm;
  return OK;
}

int nvmlGpmSampleAlloc(gpm_sample **found) {
  int code = ready("nvmlGpmSampleAlloc");
  if (!code) *found = calloc(1, sizeof **found), live_samples++;
  return code;
}

int nvmlGpmSampleFree(gpm_sample *s) {
  free(s);
  live_samples--;
  return OK;
}

int nvmlGpmSampleGet(device *d, gpm_sample *s) {
  FIND("nvmlGpmSampleGet");
  if (!g->gpm) return NOT_SUPPORTED;
  *s = (gpm_sample){d->gpu, now_us()};
  return OK;
}

int nvmlGpmMetricsGet(metrics *m) {
  int code = ready("nvmlGpmMetricsGet");
  if (code) return code;
  if (m->version != 1) return VERSION_MISMATCH;
  if (m->first->gpu != m->second->gpu) return INVALID_ARGUMENT;
  if (m->second->time_us < m->first->time_us + 100000) return INVALID_ARGUMENT;
  const gpu *g = &script.gpus[m->first->gpu];
  double busy = busy_between(g, m->first->time_us, m->second->time_us);
  for (unsigned i = 0; i < m->count; i++) {
    metric *one = &m->metrics[i];
    one->code = OK;
    if (one->id == 1) one->value = busy;
    else if (one->id == 2) one->value = busy * g->sm / 100;
    else if (one->id == 5) one->value = busy * g->tensor / 100;
    else if (one->id == 10) one->value = busy * g->dram / 100;
    else one->code = NOT_SUPPORTED;
  }
  return OK;
}
