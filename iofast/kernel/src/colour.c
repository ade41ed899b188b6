/* Planes to RGBX. Chroma goes through libjpeg's triangle filter ("fancy upsampling"), which repeats rows and columns at
the edges of the picture. */
#include <string.h>

#include "region.h"

#define ROOM 64 /* bytes after a row that vector loops may write */

static const uint8_t *sample_row(const iof_samples *plane, int x, int y) {
  return plane->samples + (size_t)(y - plane->y) * plane->stride + (x - plane->x);
}

iof_status iof_colour_start(iof_colouring *c, const iof_block_loops *loops, const iof_picture *picture, const iof_rect *rect,
                            iof_buffer *rows) {
  size_t width = ((size_t)(rect->x1 - rect->x0) + 3 * ROOM) & ~(size_t)(ROOM - 1);
  uint8_t *memory = iof_reserve(rows, 2 * width + sizeof(int16_t) * width);
  if (!memory) return IOF_MEMORY;
  *c = (iof_colouring){.loops = loops, .picture = *picture, .rect = *rect};
  c->chroma[0] = memory;
  c->chroma[1] = memory + width;
  c->sums = (int16_t *)(void *)(memory + 2 * width);
  if (picture->count == 1) memset(memory, 128, 2 * width); /* gray is a picture with neutral chroma */
  return IOF_OK;
}

/* Return chroma `which` of row `y` from the first column on: in the plane itself, or upsampled. */
static const uint8_t *chroma_row(const iof_colouring *c, int which, int y) {
  const iof_picture *p = &c->picture;
  const iof_samples *plane = &p->planes[1 + which];
  if (p->count == 1) return c->chroma[which];
  if (p->h == 1) return sample_row(plane, c->rect.x0, y);
  int tall = p->v == 2, row = y >> (p->v - 1), other = tall ? row + (y & 1 ? 1 : -1) : row;
  if (other < 0) other = 0;
  if (other >= plane->height) other = plane->height - 1;
  int first = c->rect.x0 >> 1, last = (c->rect.x1 + 1) >> 1; /* one past the end */
  int from = first > 0 ? first - 1 : 0, upto = last < plane->width ? last + 1 : plane->width;
  int16_t *sums = c->sums + 16 - first; /* so that sums[i] is column i's */
  c->loops->blend(sample_row(plane, from, row), sample_row(plane, from, other), upto - from, sums + from);
  if (first == 0) sums[-1] = sums[0];
  if (last == plane->width) sums[last] = sums[last - 1];
  c->loops->spread(sums + first, last - first, tall ? 8 : 4, tall ? 7 : 8, c->chroma[which]);
  return c->chroma[which] + (c->rect.x0 & 1);
}

void iof_colour_row(const iof_colouring *c, int y, uint8_t *rgbx) {
  const uint8_t *cb = chroma_row(c, 0, y), *cr = chroma_row(c, 1, y);
  c->loops->colour(sample_row(&c->picture.planes[0], c->rect.x0, y), cb, cr, c->rect.x1 - c->rect.x0, rgbx);
}

void iof_colour_planes(const iof_colouring *c, int y, uint8_t *to, size_t plane) {
  const uint8_t *cb = chroma_row(c, 0, y), *cr = chroma_row(c, 1, y);
  c->loops->planes(sample_row(&c->picture.planes[0], c->rect.x0, y), cb, cr, c->rect.x1 - c->rect.x0, IOF_ROW_FLIP, to, plane);
}
