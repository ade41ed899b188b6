/* Makes reads or writes of some files fail: LD_PRELOAD it, with
 *
 *   IOFAST_FAULT=<read|write>:<errno>:<from>:<part>
 *
 * In each process, from the <from>th such call (1 = the first) on files whose path contains <part>, each call fails
 * with <errno>.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char kind[8], part[4096];
static int number, from, met;

__attribute__((constructor)) static void set_up(void)
{
    const char *text = getenv("IOFAST_FAULT");
    if (text == NULL || sscanf(text, "%7[a-z]:%d:%d:%4095s", kind, &number, &from, part) != 4)
        kind[0] = 0;
}

static int fails(const char *call, int fd)
{
    char link[64], path[4096];
    ssize_t length;
    if (strcmp(call, kind) != 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    if (strstr(path, part) == NULL || __atomic_add_fetch(&met, 1, __ATOMIC_RELAXED) < from)
        return 0;
    errno = number;
    return 1;
}

#define WRAP(call, name, parameters, arguments)                                 \
    ssize_t name parameters                                                     \
    {                                                                           \
        ssize_t (*real) parameters;                                             \
        *(void **)&real = dlsym(RTLD_NEXT, #name);                              \
        return fails(call, fd) ? -1 : real arguments;                           \
    }

WRAP("read", read, (int fd, void *data, size_t size), (fd, data, size))
WRAP("read", pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
WRAP("read", pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))
WRAP("write", write, (int fd, const void *data, size_t size), (fd, data, size))
WRAP("write", pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRAP("write", pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
WRAP("write", writev, (int fd, const struct iovec *data, int count), (fd, data, count))
WRAP("write", pwritev, (int fd, const struct iovec *data, int count, off_t at), (fd, data, count, at))
WRAP("write", pwritev64, (int fd, const struct iovec *data, int count, off64_t at), (fd, data, count, at))
