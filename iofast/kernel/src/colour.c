/* Planes to RGBX. Chroma goes through libjpeg's triangle filter ("fancy upsampling"), whose rows and columns are repeated
at the edges of the picture. */
#include <string.h>

#include "region.h"

#define ROOM 64 /* bytes behind a row that vector loops may write to */

/* Scratch of one row: two upsampled chroma rows, and the sums they are made of. */
typedef struct {
  uint8_t *chroma[2];
  int16_t *sums;
} row_memory;

static const uint8_t *sample_row(const iof_samples *plane, int x, int y) {
  return plane->samples + (size_t)(y - plane->y) * plane->stride + (x - plane->x);
}

/* Chroma of row `y` from column x0 on: where it lies in the plane, or upsampled into `to`. */
static const uint8_t *chroma_row(const iof_block_loops *loops, const iof_picture *p, const iof_samples *plane, int y,
                                 const iof_rect *rect, int16_t *sums, uint8_t *to) {
  if (p->h == 1) return sample_row(plane, rect->x0, y);
  int tall = p->v == 2, row = y >> (p->v - 1), other = tall ? row + (y & 1 ? 1 : -1) : row;
  if (other < 0) other = 0;
  if (other >= plane->height) other = plane->height - 1;
  int first = rect->x0 >> 1, last = (rect->x1 + 1) >> 1; /* one past the end */
  int from = first > 0 ? first - 1 : 0, upto = last < plane->width ? last + 1 : plane->width;
  sums += 16 - first; /* now sums[i] is column i's */
  loops->blend(sample_row(plane, from, row), sample_row(plane, from, other), upto - from, sums + from);
  if (first == 0) sums[-1] = sums[0];
  if (last == plane->width) sums[last] = sums[last - 1];
  loops->spread(sums + first, last - first, tall ? 8 : 4, tall ? 7 : 8, to);
  return to + (rect->x0 & 1);
}

iof_status iof_colour_region(const iof_block_loops *loops, const iof_picture *picture, const iof_rect *rect, iof_buffer *rows,
                             const iof_pixels *pixels) {
  size_t width = ((size_t)(rect->x1 - rect->x0) + 2 * ROOM) & ~(size_t)(ROOM - 1);
  uint8_t *memory = iof_reserve(rows, 2 * (width + ROOM) + sizeof(int16_t) * (width + ROOM));
  if (!memory) return IOF_MEMORY;
  uint8_t *cb_row = memory, *cr_row = memory + width + ROOM;
  int16_t *sums = (int16_t *)(memory + 2 * (width + ROOM));
  if (picture->count == 1) memset(memory, 128, 2 * (width + ROOM)); /* gray is a picture without chroma */
  for (int y = rect->y0; y < rect->y1; y++) {
    const uint8_t *cb = cb_row, *cr = cr_row;
    if (picture->count == 3) {
      cb = chroma_row(loops, picture, &picture->planes[1], y, rect, sums, cb_row);
      cr = chroma_row(loops, picture, &picture->planes[2], y, rect, sums, cr_row);
    }
    uint8_t *to = pixels->pixels + (size_t)(y - rect->y0) * pixels->stride;
    loops->colour(sample_row(&picture->planes[0], rect->x0, y), cb, cr, rect->x1 - rect->x0, to);
  }
  return IOF_OK;
}
