/* The markers before the scan, and the restart markers in it. */
#include <stdlib.h>
#include <string.h>

#include "region.h"

/* Place in a block, row by row, of coefficient k of a scan. */
static const uint8_t ZIGZAG[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
                                   41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
                                   30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

#define MAX_SIDE 65500 /* libjpeg's JPEG_MAX_DIMENSION */

static size_t u16be(const uint8_t *p) { return (size_t)p[0] << 8 | p[1]; }

/* Markers found so far; like libjpeg, the choice of colours depends on them. */
typedef struct {
  int frames, jfif, adobe;
  unsigned quant; /* a bit per table */
  uint8_t id[3];
} seen;

static iof_status read_quant(const uint8_t *p, size_t n, iof_frame *frame, seen *s) {
  iof_status status = IOF_OK;
  while (n && !status) {
    if (p[0] > 3 || n < 65) { /* a baseline file has no tables of 16 bits */
      status = IOF_UNSUPPORTED;
    } else {
      for (int k = 0; k < 64; k++) frame->quant[p[0]][ZIGZAG[k]] = p[1 + k];
      s->quant |= 1u << p[0];
      p += 65, n -= 65;
    }
  }
  return status;
}

static iof_status read_codes(const uint8_t *p, size_t n, iof_frame *frame) {
  iof_status status = IOF_OK;
  while (n && !status) {
    size_t symbols = 0;
    for (int i = 1; n >= 17 && i <= 16; i++) symbols += p[i];
    if (n < 17 || (p[0] & ~0x13) || symbols > 256 || n < 17 + symbols) {
      status = IOF_UNSUPPORTED;
    } else {
      frame->code[p[0] >> 4][p[0] & 3] = (iof_code_table){p + 1, (int)symbols};
      p += 17 + symbols, n -= 17 + symbols;
    }
  }
  return status;
}

static iof_status read_size(const uint8_t *p, size_t n, iof_frame *frame, seen *s) {
  if (n < 6 || p[0] != 8 || n != 6 + 3 * (size_t)p[5] || (p[5] != 1 && p[5] != 3) || s->frames++) return IOF_UNSUPPORTED;
  frame->height = (int)u16be(p + 1);
  frame->width = (int)u16be(p + 3);
  frame->components = p[5];
  for (int c = 0; c < frame->components; c++) {
    const uint8_t *q = p + 6 + 3 * c;
    s->id[c] = q[0];
    frame->component[c] = (iof_component){.h = q[1] >> 4, .v = q[1] & 15, .quant = q[2]};
    if (q[2] > 3) return IOF_UNSUPPORTED;
  }
  int smaller = frame->width < frame->height ? frame->width : frame->height;
  int larger = frame->width < frame->height ? frame->height : frame->width;
  return smaller > 0 && larger <= MAX_SIDE ? IOF_OK : IOF_UNSUPPORTED;
}

/* Accept only one scan of all components, from the first coefficient to the last. */
static iof_status read_scan(const uint8_t *p, size_t n, iof_frame *frame, const seen *s) {
  size_t components = (size_t)frame->components;
  if (!s->frames || n != 4 + 2 * components || p[0] != components) return IOF_UNSUPPORTED;
  for (size_t c = 0; c < components; c++) {
    const uint8_t *q = p + 1 + 2 * c;
    if (q[0] != s->id[c] || (q[1] & ~0x33)) return IOF_UNSUPPORTED;
    frame->component[c].dc = q[1] >> 4;
    frame->component[c].ac = q[1] & 3;
  }
  const uint8_t *end = p + 1 + 2 * components;
  return end[0] == 0 && end[1] == 63 && end[2] == 0 ? IOF_OK : IOF_UNSUPPORTED;
}

/* libjpeg's rule for three components, without cases that no encoder in use writes. */
static int is_ycc(const seen *s) {
  return s->jfif || s->adobe == 1 || (s->adobe < 0 && s->id[0] == 1 && s->id[1] == 2 && s->id[2] == 3);
}

static iof_status finish(iof_frame *frame, const seen *s) {
  iof_component *c = frame->component;
  int gray = frame->components == 1;
  if (gray) { /* a scan of one component ignores sampling factors */
    if (c[0].h < 1 || c[0].h > 4 || c[0].v < 1 || c[0].v > 4) return IOF_UNSUPPORTED;
    c[0].h = c[0].v = 1;
  } else if (!is_ycc(s) || c[0].h < 1 || c[0].h > 2 || c[0].v < 1 || c[0].v > c[0].h || c[1].h * c[1].v != 1 ||
             c[2].h * c[2].v != 1) {
    return IOF_UNSUPPORTED;
  }
  int h = c[0].h, v = c[0].v;
  frame->across = iof_divided_up(frame->width, 8 * h);
  frame->down = iof_divided_up(frame->height, 8 * v);
  for (int i = 0; i < frame->components; i++) {
    c[i].width = iof_divided_up(frame->width * c[i].h, h);
    c[i].height = iof_divided_up(frame->height * c[i].v, v);
    if (!frame->code[0][c[i].dc].body || !frame->code[1][c[i].ac].body || !(s->quant >> c[i].quant & 1))
      return IOF_UNSUPPORTED;
  }
  /* at tiny widths libjpeg does not use fancy upsampling */
  return !gray && h > 1 && c[1].width <= 2 ? IOF_UNSUPPORTED : IOF_OK;
}

static iof_status read_segment(unsigned marker, const uint8_t *p, size_t n, iof_frame *frame, seen *s) {
  switch (marker) {
    case 0xC0:
    case 0xC1: return read_size(p, n, frame, s);
    case 0xC4: return read_codes(p, n, frame);
    case 0xDB: return read_quant(p, n, frame, s);
    case 0xDA: return read_scan(p, n, frame, s);
    case 0xDD:
      if (n == 2) frame->restart = (int)u16be(p);
      return n == 2 ? IOF_OK : IOF_UNSUPPORTED;
    case 0xE0:
      if (n >= 14 && !memcmp(p, "JFIF", 5)) s->jfif = 1;
      return IOF_OK;
    case 0xEE:
      if (n >= 12 && !memcmp(p, "Adobe", 5)) s->adobe = p[11];
      return IOF_OK;
    default: return (marker >= 0xE1 && marker <= 0xEF) || marker == 0xFE ? IOF_OK : IOF_UNSUPPORTED;
  }
}

iof_status iof_frame_read(const uint8_t *data, size_t length, iof_frame *frame) {
  size_t at = 2;
  unsigned marker = 0;
  seen s = {.adobe = -1};
  iof_status status = length < 4 || data[0] != 0xFF || data[1] != 0xD8 ? IOF_UNSUPPORTED : IOF_OK;
  memset(frame, 0, sizeof *frame);
  while (!status && marker != 0xDA) {
    size_t size = at + 4 <= length ? u16be(data + at + 2) : 0;
    if (size < 2 || data[at] != 0xFF || at + 2 + size > length) {
      status = IOF_UNSUPPORTED;
    } else {
      marker = data[at + 1];
      status = read_segment(marker, data + at + 4, size - 2, frame, &s);
      at += 2 + size;
    }
  }
  frame->scan = at;
  return status ? status : finish(frame, &s);
}

/* Copy everything before the next 0xFF. Returns the place of that byte, or the end. */
static const uint8_t *copy_run(const uint8_t *from, const uint8_t *end, uint8_t **to) {
  const uint8_t *mark = memchr(from, 0xFF, (size_t)(end - from));
  size_t n = (size_t)((mark ? mark : end) - from);
  memcpy(*to, from, n);
  *to += n;
  return from + n;
}

iof_status iof_segments_find(iof_segments *segments, const iof_frame *frame, const uint8_t *data, size_t length) {
  const uint8_t *from = data + frame->scan, *end = data + length;
  size_t left = (size_t)(end - from);
  uint64_t mcus = (uint64_t)frame->across * (uint64_t)frame->down;
  uint64_t wanted = frame->restart ? (mcus + (uint64_t)frame->restart - 1) / (uint64_t)frame->restart : 1;
  if (length > UINT32_MAX) return IOF_UNSUPPORTED;
  if (wanted > left / 2 + 1) return IOF_CORRUPT; /* a marker takes two bytes */
  uint8_t *bytes = iof_reserve(&segments->memory, left + IOF_OVERREAD), *to = bytes;
  uint32_t *begin = iof_reserve(&segments->places, 2 * (size_t)(wanted + 1) * sizeof(uint32_t));
  if (!bytes || !begin) return IOF_MEMORY;
  uint32_t *origin = begin + wanted + 1;
  uint32_t count = 0;
  unsigned marker = 0;
  begin[0] = 0, origin[0] = (uint32_t)frame->scan;
  while (count < wanted && from < end) {
    from = copy_run(from, end, &to);
    if (from + 1 >= end) break;
    marker = from[1];
    from += marker == 0xFF ? 1 : 2;
    if (!marker) {
      *to++ = 0xFF;
    } else if (marker == 0xFF) { /* a fill byte; libjpeg's loops differ on one before a stuffed zero */
      if (from + 1 < end && !from[1]) return IOF_UNSUPPORTED;
    } else {
      begin[++count] = (uint32_t)(to - bytes);
      origin[count] = (uint32_t)(from - data);
      if (marker != 0xD0 + ((count - 1) & 7)) break;
    }
  }
  memset(to, 0, IOF_OVERREAD);
  segments->bytes = bytes, segments->begin = begin, segments->origin = origin, segments->count = count;
  segments->ended = marker == 0xD9;
  return count == wanted ? IOF_OK : IOF_CORRUPT;
}

void iof_segments_free(iof_segments *segments) {
  free(segments->memory.data);
  free(segments->places.data);
}
