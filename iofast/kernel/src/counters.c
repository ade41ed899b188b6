/* The clock for the stages of an image; it is read only in timed contexts. */
#include <time.h>

#include "internal.h"

void iof_clock_start(iof_counters *counters) {
  struct timespec now;
  if (counters->timed) {
    clock_gettime(CLOCK_MONOTONIC, &now);
    counters->lap = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
  }
}

void iof_clock_lap(iof_counters *counters, iof_stage stage) {
  uint64_t before = counters->lap;
  if (counters->timed > (stage != IOF_READING)) {
    iof_clock_start(counters);
    uint64_t *sum = &counters->nanoseconds[stage]; /* may be read meanwhile: see iof_count */
    __atomic_store_n(sum, *sum + counters->lap - before, __ATOMIC_RELAXED);
  }
}
