/* Makes memory run out: LD_PRELOAD it, and call fail_allocation(n). Only the nth aligned_alloc after that returns NULL.
 * The kernel allocates all its scratch memory with it; NumPy and torch do not. allocations() counts the calls since.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

static long countdown, met;

void fail_allocation(long n)
{
    countdown = n;
    met = 0;
}

long allocations(void) { return met; }

void *aligned_alloc(size_t alignment, size_t size)
{
    static void *(*real)(size_t, size_t);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "aligned_alloc");
    met++;
    return countdown && --countdown == 0 ? NULL : real(alignment, size);
}
