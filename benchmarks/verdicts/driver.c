/* Launch and wait: a training process's calls to the simulated device's queue. In C, so that a Python stack shows the line
of the program that waits, as with a real driver, and so that waiting does not hold the GIL.

The layout is that of shared.py: words of 64 bits, little-endian. */
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LAUNCHED, COMPLETED, WAITERS };
enum { HEADER = 512, SLOT = 3, SLOTS = 8192 };

typedef _Atomic uint64_t word;

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void wait_for(word *words, uint64_t until, int spin) {
  const struct timespec limit = {0, 50000000}; /* a wake-up between two lines is missed for at most this long */
  for (;;) {
    uint64_t done = atomic_load(&words[COMPLETED]);
    if (done >= until) return;
    if (spin) continue;
    atomic_fetch_add(&words[WAITERS], 1);
    if (atomic_load(&words[COMPLETED]) == done)
      syscall(SYS_futex, &words[COMPLETED], FUTEX_WAIT, (uint32_t)done, &limit, 0, 0);
    atomic_fetch_sub(&words[WAITERS], 1);
  }
}

/* Queue a kernel that runs for `duration` nanoseconds, once fewer than `depth` are queued. Returns its number. */
uint64_t launch(word *words, uint64_t depth, int spin, uint64_t duration) {
  uint64_t number = atomic_load(&words[LAUNCHED]);
  if (number >= depth) wait_for(words, number - depth + 1, spin);
  word *slot = words + HEADER + SLOT * (number % SLOTS);
  atomic_store(&slot[0], now());
  atomic_store(&slot[1], duration);
  atomic_store(&slot[2], 0);
  atomic_store(&words[LAUNCHED], number + 1);
  if (atomic_load(&words[COMPLETED]) == number) /* the device may be asleep */
    syscall(SYS_futex, &words[LAUNCHED], FUTEX_WAKE, 1, 0, 0, 0);
  return number;
}

/* Wait until every launched kernel has run. */
void synchronize(word *words, int spin) { wait_for(words, atomic_load(&words[LAUNCHED]), spin); }
