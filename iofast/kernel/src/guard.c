/* Maps of files, and the guard that makes them safe to look at; see guard.h. */
#define _GNU_SOURCE
#include "guard.h"

#include <sys/uio.h>

#if defined(__linux__) && defined(RWF_NOWAIT)
#include <errno.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define MAPS 64 /* at once in a process, a bit each; of further files, raw pixels are read */

struct iof_map {
  atomic_int taken;
  atomic_int file; /* descriptor + 1, set last and cleared first; 0: nobody may look */
  atomic_int broken;
  _Atomic uintptr_t base;
  _Atomic size_t length;
  dev_t device;
  ino_t inode;
};

static iof_map maps[MAPS]; /* a handler gets nothing handed to it, so this is the kernel's one global state */
static struct sigaction previous;
static atomic_int installed; /* 1: being done, 2: done, once and for ever: others may have kept our handler as theirs to call */

static iof_map *map_at(uintptr_t address) {
  for (int i = 0; i < MAPS; i++) {
    uintptr_t base = maps[i].base;
    if (maps[i].file && address >= base && address - base < maps[i].length) return &maps[i];
  }
  return NULL;
}

/* What would have happened without us. A fault comes again when the handler returns; a signal that was sent does not. */
static void hand_on(int number, siginfo_t *info, void *context) {
  int sent = info->si_code <= 0 || info->si_code == BUS_MCEERR_AO;
  int own = previous.sa_flags & SA_SIGINFO || (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN);
  if (!own && sent && previous.sa_handler == SIG_IGN) return;
  if (!own || previous.sa_flags & (int)SA_RESETHAND) signal(number, SIG_DFL);
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(number, info, context);
  } else if (own) {
    previous.sa_handler(number);
  } else if (sent) {
    raise(number);
  }
}

/* All of the map becomes zeros, not the page alone: whoever meets them sees `broken` and reads the file instead. */
static void on_bus_error(int number, siginfo_t *info, void *context) {
  int reason = errno;
  iof_map *map = info->si_code > 0 ? map_at((uintptr_t)info->si_addr) : NULL;
  void *zeros = MAP_FAILED;
  if (map) {
    map->broken = 1; /* before there is a zero to be seen */
    zeros = mmap((void *)map->base, map->length, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
  if (zeros == MAP_FAILED) hand_on(number, info, context);
  errno = reason;
}

static void install(void) {
  int nobody = 0;
  struct sigaction ours = {.sa_sigaction = on_bus_error};
  if (!atomic_compare_exchange_strong(&installed, &nobody, 1)) return;
  if (sigaction(SIGBUS, NULL, &previous)) return; /* apart: it has to be there before the first signal comes */
  ours.sa_mask = previous.sa_mask;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (previous.sa_flags & (int)(SA_NODEFER | SA_RESTART));
  if (!sigaction(SIGBUS, &ours, NULL)) installed = 2;
}

int iof_guard_holds(void) {
  struct sigaction now;
  sigset_t blocked; /* a fault whose signal is blocked kills, whoever would handle it */
  return installed == 2 && !sigaction(SIGBUS, NULL, &now) && now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_bus_error &&
         !pthread_sigmask(SIG_BLOCK, NULL, &blocked) && !sigismember(&blocked, SIGBUS);
}

/* A file that memory cannot hold is read: nearly every look would be the first at its page, and a fault costs what it saves. */
static int fits_memory(size_t length) {
  long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 && length / (size_t)size < (size_t)pages;
}

iof_map *iof_map_file(int fd, size_t length) {
  struct stat status;
  iof_map *map = NULL;
  install();
  if (!iof_guard_holds() || !length || !fits_memory(length) || fstat(fd, &status)) return NULL;
  for (int i = 0, nobody = 0; i < MAPS && !map; i++, nobody = 0)
    if (atomic_compare_exchange_strong(&maps[i].taken, &nobody, 1)) map = &maps[i];
  void *base = map ? mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (base != MAP_FAILED) {
    map->base = (uintptr_t)base;
    map->length = length;
    map->broken = 0;
    map->device = status.st_dev;
    map->inode = status.st_ino;
    map->file = fd + 1;
  } else if (map) {
    map->taken = 0;
    map = NULL;
  }
  return map;
}

void iof_map_free(iof_map *map) {
  if (!map) return;
  map->file = 0;
  munmap((void *)map->base, map->length);
  map->taken = 0;
}

uint64_t iof_maps_of(int fd) {
  uint64_t found = 0;
  for (int i = 0; i < MAPS && !found && fd >= 0; i++)
    if (maps[i].file - 1 == fd) found = (uint64_t)1 << i;
  return found;
}

const uint8_t *iof_map_look(int fd, uint64_t offset, uint64_t length, uint64_t *looked) {
  uint64_t own = iof_maps_of(fd);
  iof_map *map = own ? &maps[__builtin_ctzll(own)] : NULL;
  if (!map || map->broken || offset > map->length || length > map->length - offset) return NULL;
  *looked |= own;
  return (const uint8_t *)map->base + offset;
}

int iof_is_cached(int fd, uint64_t offset) {
  uint8_t byte;
  struct iovec one = {&byte, 1};
  struct statfs system;
  if (preadv2(fd, &one, 1, (off_t)offset, RWF_NOWAIT) == 1) return 1;
  return errno == EOPNOTSUPP && !fstatfs(fd, &system) && system.f_type == TMPFS_MAGIC; /* which is nowhere else */
}

uint64_t iof_maps_broken(uint64_t looked) {
  uint64_t broken = 0;
  for (int i = 0; i < MAPS; i++) {
    struct stat now;
    if (!(looked >> i & 1)) continue;
    if (fstat(maps[i].file - 1, &now) || now.st_ino != maps[i].inode || now.st_dev != maps[i].device || now.st_size < 0 ||
        (uint64_t)now.st_size < maps[i].length)
      maps[i].broken = 1;
    if (maps[i].broken) broken |= (uint64_t)1 << i;
  }
  return broken;
}

#else /* where nobody tried it, everything is read */
iof_map *iof_map_file(int fd, size_t length) { return (void)fd, (void)length, NULL; }
void iof_map_free(iof_map *map) { (void)map; }
int iof_guard_holds(void) { return 0; }
uint64_t iof_maps_of(int fd) { return (void)fd, 0; }
const uint8_t *iof_map_look(int fd, uint64_t offset, uint64_t length, uint64_t *looked) {
  return (void)fd, (void)offset, (void)length, (void)looked, NULL;
}
int iof_is_cached(int fd, uint64_t offset) { return (void)fd, (void)offset, 0; }
uint64_t iof_maps_broken(uint64_t looked) { return (void)looked, 0; }
#endif
