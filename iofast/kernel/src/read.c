/* Reading by position: a file that another process truncates gives an error code. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#include "internal.h"

iof_status iof_read_bytes(int fd, uint64_t offset, size_t length, uint8_t *to) {
  size_t done = 0;
  iof_status status = offset > INT64_MAX - length ? IOF_SHORT : IOF_OK;
  while (!status && done < length) {
    ssize_t got = pread(fd, to + done, length - done, (off_t)(offset + done));
    if (got > 0) {
      done += (size_t)got;
    } else if (got == 0) {
      status = IOF_SHORT;
    } else if (errno != EINTR) {
      status = IOF_READ;
    }
  }
  return status;
}

iof_status iof_read_rows(int fd, const int64_t *offsets, int64_t n, size_t size, uint8_t *out, int64_t *failed) {
  iof_status status = IOF_OK;
  for (int64_t row = 0, end; !status && row < n; row = end) {
    size_t length = size;
    uint64_t offset = (uint64_t)offsets[row];
    /* consecutive rows are one read; a hostile offset may wrap the unsigned sum, and is refused below */
    for (end = row + 1; end < n && (uint64_t)offsets[end] == offset + length; end++) length += size;
    status = iof_read_bytes(fd, offset, length, out + (size_t)row * size);
    *failed = row;
  }
  return status;
}
