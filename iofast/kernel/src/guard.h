/* Looking at the bytes of a file where the page cache has them, instead of copying them out.

A page of a map goes when somebody cuts the file off, or when the disk fails, and a look at it then kills the process
(SIGBUS). So a handler of ours turns a map that breaks into zeros, and whoever looked asks afterwards whether it held: if
not, what was seen is thrown away and the file is read, which says what is wrong. A map never decides anything; it only
saves a copy. */
#ifndef IOFAST_GUARD_H
#define IOFAST_GUARD_H

#include "internal.h"

/* Whether a look at a map is safe in this thread now: our handler is the one in place, and not blocked. */
int iof_guard_holds(void);

uint64_t iof_maps_of(int fd); /* the descriptor's map as a bit, 0: it has none */

/* The address of the `length` bytes at `offset`; NULL where the descriptor has no map that holds them, or one that broke: read
them. The map's bit is added to `looked`. */
const uint8_t *iof_map_look(int fd, uint64_t offset, uint64_t length, uint64_t *looked);

/* Those of the maps `looked` at in which something else than the file's bytes may have been seen: that broke, or whose file is
shorter now. (The page in which a shortened file ends shows zeros behind the end without any signal.) */
uint64_t iof_maps_broken(uint64_t looked);

#endif
