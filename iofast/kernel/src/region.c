/* A region of a JPEG: the choice of the decoding path, and our own path from the first segment to the last pixel. */
#include <stdlib.h>
#include <string.h>

#include "region.h"

#define MARGIN 2 /* pixels around a region that libjpeg may read */
#define SLACK 64 /* bytes after each row and after the last: vector loads read past the end */

struct iof_region {
  iof_jpeg *jpeg;
  iof_counters *counters;
  iof_way way; /* to try first */
  int forced;  /* by the caller or the environment */
  const iof_block_loops *loops;
  const uint8_t *data;
  size_t length;
  int known; /* the opened image is one that our decoder supports; libjpeg has not opened it */
  int components; /* of the opened image */
  iof_frame frame;
  iof_segments segments;
  iof_codes codes[2][4];
  iof_spliced spliced;
  iof_colouring colouring;
  iof_buffer coefs, samples, rows, pixels;
};

/* Without our vector loops libjpeg-turbo is faster, because it has its own on most machines. */
static iof_way preferred(const iof_block_loops *loops, const char *forced) {
  if (forced && !strcmp(forced, "own")) return IOF_BY_SEGMENTS;
  if (forced && !strcmp(forced, "splice")) return IOF_BY_SPLICE;
  if (forced && !strcmp(forced, "libjpeg")) return IOF_BY_LIBJPEG;
  return loops == &iof_block_loops_scalar ? IOF_BY_SPLICE : IOF_BY_SEGMENTS;
}

iof_region *iof_region_new(iof_counters *counters, int way) {
  iof_region *region = calloc(1, sizeof *region);
  if (region) {
    region->counters = counters;
    region->loops = iof_block_loops_best();
    const char *named = getenv("IOFAST_REGION");
    region->forced = way >= 0 || named;
    region->way = way < 0 ? preferred(region->loops, named) : (iof_way)way;
    region->jpeg = iof_jpeg_new();
    if (!region->jpeg) {
      free(region);
      region = NULL;
    }
  }
  return region;
}

void iof_region_free(iof_region *region) {
  if (!region) return;
  iof_buffer *all[] = {&region->coefs, &region->samples, &region->rows, &region->pixels, &region->spliced.memory};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
  iof_segments_free(&region->segments);
  iof_jpeg_free(region->jpeg);
  free(region);
}

/* Have libjpeg open the current image, if our decoder has opened it. */
static iof_status open_jpeg(iof_region *r) {
  int width, height;
  if (!r->known) return IOF_OK;
  r->known = 0;
  return iof_jpeg_open(r->jpeg, r->data, r->length, &width, &height, &r->components);
}

iof_jpeg *iof_region_idle_jpeg(iof_region *r) {
  r->known = 0;
  return r->jpeg;
}

static int make_codes(iof_region *r) {
  int direct = 1;
  for (int c = 0; c < r->frame.components && direct; c++) {
    const iof_component *component = &r->frame.component[c];
    direct = iof_codes_make(&r->codes[0][component->dc], &r->frame.code[0][component->dc], 0) &&
             iof_codes_make(&r->codes[1][component->ac], &r->frame.code[1][component->ac], 1);
  }
  return direct;
}

iof_status iof_region_open(iof_region *r, const uint8_t *data, size_t length, int *width, int *height) {
  r->data = data, r->length = length;
  r->known = r->way != IOF_BY_LIBJPEG && !iof_frame_read(data, length, &r->frame) && make_codes(r);
  if (!r->known) return iof_jpeg_open(r->jpeg, data, length, width, height, &r->components);
  r->components = r->frame.components;
  *width = r->frame.width;
  *height = r->frame.height;
  return IOF_OK;
}

/* The MCUs that a region needs, and the planes of their samples. */
typedef struct {
  int x0, y0, x1, y1;
  int fours[3]; /* groups of four blocks in a row of blocks */
  size_t coefs; /* int16s of an MCU row */
  iof_picture picture;
} mcu_region;

/* Convert pixels [*from, *to) of one axis to MCUs. Interpolated chroma also needs the next sample, so one more pixel is
included on each side. */
void iof_cover(int *from, int *to, int samples, int mcus) {
  int margin = samples > 1;
  *from = (*from > margin ? *from - margin : 0) / (8 * samples);
  *to = (*to + margin + 8 * samples - 1) / (8 * samples);
  if (*to > mcus) *to = mcus;
}

static mcu_region plan(const iof_frame *f, const int32_t rect[4]) {
  mcu_region m = {.x0 = rect[0], .y0 = rect[1], .x1 = rect[2], .y1 = rect[3]};
  m.picture = (iof_picture){.count = f->components, .h = f->component[0].h, .v = f->component[0].v};
  iof_cover(&m.x0, &m.x1, f->component[0].h, f->across);
  iof_cover(&m.y0, &m.y1, f->component[0].v, f->down);
  return m;
}

/* Allocate the coefficients of two MCU rows, and the samples of all. */
static iof_status lay_out(iof_region *r, mcu_region *m, iof_mcu_row rows[2]) {
  const iof_frame *f = &r->frame;
  size_t samples = 0;
  m->coefs = 0;
  for (int c = 0; c < f->components; c++) {
    const iof_component *component = &f->component[c];
    m->fours[c] = ((m->x1 - m->x0) * component->h + 3) / 4;
    size_t stride = (size_t)m->fours[c] * 32 + SLACK;
    m->picture.planes[c] = (iof_samples){NULL, stride, 8 * component->h * m->x0, 8 * component->v * m->y0, component->width,
                                 component->height};
    m->coefs += (size_t)component->v * (size_t)m->fours[c] * IOF_FOUR;
    samples += stride * (size_t)(8 * component->v) * (size_t)(m->y1 - m->y0);
  }
  int16_t *coef = iof_reserve(&r->coefs, 2 * m->coefs * sizeof(int16_t));
  uint8_t *sample = iof_reserve(&r->samples, samples + SLACK);
  if (!coef || !sample) return IOF_MEMORY;
  for (int i = 0; i < 2; i++) {
    rows[i].frame = f;
    for (int c = 0; c < f->components; c++) {
      const iof_component *component = &f->component[c];
      rows[i].dc[c] = &r->codes[0][component->dc];
      rows[i].ac[c] = &r->codes[1][component->ac];
      for (int v = 0; v < component->v; v++, coef += (size_t)m->fours[c] * IOF_FOUR) rows[i].rows[c][v] = coef;
    }
  }
  for (int c = 0; c < f->components; c++) {
    m->picture.planes[c].samples = sample;
    sample += m->picture.planes[c].stride * (size_t)(8 * f->component[c].v) * (size_t)(m->y1 - m->y0);
  }
  return IOF_OK;
}

/* Position in the scan: `mcu` is the next one, `segment` the segment of `bits`. */
typedef struct {
  iof_bits bits;
  int64_t mcu, segment;
} cursor;

static iof_bits reading_at(const iof_segments *s, int64_t segment) {
  return (iof_bits){.at = s->bytes + s->begin[segment], .end = s->bytes + s->begin[segment + 1]};
}

static void start_segment(const iof_segments *s, int64_t segment, int64_t restart, cursor *at) {
  at->bits = reading_at(s, segment);
  at->segment = segment;
  at->mcu = segment * restart;
}

/* Decode the wanted MCUs of row `y`, and skip those before them in the segment. */
static int decode_row(iof_region *r, const mcu_region *m, const iof_mcu_row *row, int y, cursor *at) {
  const iof_frame *f = &r->frame;
  int64_t first = (int64_t)y * f->across + m->x0, last = (int64_t)y * f->across + m->x1;
  int64_t restart = f->restart ? f->restart : (int64_t)f->across * f->down;
  int whole = 1;
  if (at->segment != first / restart) start_segment(&r->segments, first / restart, restart, at);
  while (at->mcu < last && whole) {
    int64_t end = (at->segment + 1) * restart;
    if (at->mcu == end) {
      start_segment(&r->segments, at->segment + 1, restart, at);
    } else if (at->mcu < first) {
      int64_t upto = end < first ? end : first;
      whole = r->loops->decode(row, &at->bits, -1, (int)(upto - at->mcu));
      at->mcu = upto;
    } else {
      int64_t upto = end < last ? end : last;
      whole = r->loops->decode(row, &at->bits, (int)(at->mcu - first), (int)(upto - at->mcu));
      at->mcu = upto;
    }
  }
  return whole;
}

/* Decode the wanted MCUs of rows `y` and `y` + 1, whose rows are whole segments: two segments in step. */
static int decode_row_pair(iof_region *r, const mcu_region *m, const iof_mcu_row rows[2], int y) {
  int restart = r->frame.restart, per_row = r->frame.across / restart, whole = 1;
  for (int segment = m->x0 / restart; segment * restart < m->x1 && whole; segment++) {
    int64_t upper = (int64_t)y * per_row + segment;
    iof_bits bits[2] = {reading_at(&r->segments, upper), reading_at(&r->segments, upper + per_row)};
    int from = segment * restart, to = from + restart < m->x1 ? from + restart : m->x1, past = m->x0 - from;
    if (past > 0) whole = r->loops->decode_two(rows, bits, -1, past);
    if (past < 0) past = 0;
    if (whole) whole = r->loops->decode_two(rows, bits, from + past - m->x0, to - from - past);
  }
  return whole;
}

static int transform_row(const iof_region *r, const mcu_region *m, const iof_mcu_row *row, int y) {
  int whole = 1;
  for (int c = 0; c < r->frame.components; c++) {
    const iof_component *component = &r->frame.component[c];
    const iof_samples *plane = &m->picture.planes[c];
    for (int v = 0; v < component->v; v++) {
      size_t line = 8 * ((size_t)(y - m->y0) * (size_t)component->v + (size_t)v);
      whole &= r->loops->idct(row->rows[c][v], r->frame.quant[component->quant], m->fours[c],
                              plane->samples + line * plane->stride, plane->stride);
    }
  }
  return whole;
}

static iof_status decode_samples(iof_region *r, const mcu_region *m, const iof_mcu_row rows[2]) {
  cursor at = {.segment = -1};
  int whole = 1, pairs = iof_spliceable(&r->frame), count;
  for (int y = m->y0; y < m->y1 && whole; y += count) {
    count = pairs && y + 1 < m->y1 ? 2 : 1;
    memset(rows[0].rows[0][0], 0, (size_t)count * m->coefs * sizeof(int16_t));
    whole = count == 2 ? decode_row_pair(r, m, rows, y) : decode_row(r, m, rows, y, &at);
    iof_clock_lap(r->counters, IOF_ENTROPY);
    for (int i = 0; i < count && whole; i++) whole = transform_row(r, m, &rows[i], y + i);
    iof_clock_lap(r->counters, IOF_TRANSFORM);
  }
  return whole ? IOF_OK : IOF_CORRUPT;
}

static void make_row(void *source, int y, uint8_t *planes, size_t plane) {
  iof_region *r = source;
  iof_clock_lap(r->counters, IOF_RESAMPLING);
  iof_colour_planes(&r->colouring, y, planes, plane);
  iof_clock_lap(r->counters, IOF_COLOUR);
}

static iof_status colour_all(iof_region *r, iof_pixels *pixels) {
  pixels->stride = (4 * (size_t)pixels->width + 2 * SLACK - 1) / SLACK * SLACK;
  pixels->pixels = iof_reserve(&r->pixels, pixels->stride * (size_t)pixels->height + SLACK);
  for (int i = 0; pixels->pixels && i < pixels->height; i++)
    iof_colour_row(&r->colouring, pixels->y + i, pixels->pixels + (size_t)i * pixels->stride);
  return pixels->pixels ? IOF_OK : IOF_MEMORY;
}

static iof_status decode_ours(iof_region *r, const int32_t rect[4], int by_rows, iof_pixels *pixels) {
  const iof_frame *f = &r->frame;
  mcu_region m = plan(f, rect);
  iof_mcu_row rows[2];
  iof_rect wanted = {rect[0], rect[1], rect[2], rect[3]};
  iof_status status = lay_out(r, &m, rows);
  if (!status) status = decode_samples(r, &m, rows);
  if (!status) status = iof_colour_start(&r->colouring, r->loops, &m.picture, &wanted, &r->rows);
  *pixels = (iof_pixels){.x = rect[0], .y = rect[1], .width = rect[2] - rect[0], .height = rect[3] - rect[1]};
  if (!status && by_rows) {
    pixels->row = make_row;
    pixels->source = r;
  } else if (!status) {
    status = colour_all(r, pixels);
  }
  iof_clock_lap(r->counters, IOF_COLOUR);
  return status;
}

static iof_status planes_ours(iof_region *r, iof_plane planes[3]) {
  const iof_frame *f = &r->frame;
  const int32_t whole[4] = {0, 0, f->width, f->height};
  mcu_region m = plan(f, whole);
  iof_mcu_row rows[2];
  iof_status status = lay_out(r, &m, rows);
  if (!status) status = decode_samples(r, &m, rows);
  for (int c = 0; c < f->components && !status; c++) {
    const iof_component *k = &f->component[c];
    const iof_samples *s = &m.picture.planes[c];
    planes[c] = (iof_plane){s->samples, s->stride, k->width, k->height, (double)f->width * k->h / f->component[0].h,
                            (double)f->height * k->v / f->component[0].v};
  }
  return status;
}

static int within(int value, int low, int high) { return value < low ? low : value > high ? high : value; }

iof_status iof_region_frame(iof_region *r, const uint8_t *data, size_t length, int *width, int *height) {
  r->data = data, r->length = length;
  r->known = 0; /* libjpeg has another image open, if any */
  if (iof_frame_read(data, length, &r->frame) || !make_codes(r)) return IOF_UNSUPPORTED;
  *width = r->frame.width;
  *height = r->frame.height;
  return IOF_OK;
}

iof_status iof_region_segments(iof_region *r, const iof_frame **frame, const iof_segments **segments) {
  iof_status status = iof_segments_find(&r->segments, &r->frame, r->data, r->length);
  *frame = &r->frame, *segments = &r->segments;
  return !status && !r->segments.ended ? IOF_UNSUPPORTED : status;
}

static iof_status decode_spliced(iof_region *r, const int32_t rect[4], int denominator, int strict, iof_pixels *pixels) {
  const iof_frame *f = &r->frame;
  iof_rect mcus = {within((rect[0] - MARGIN) * denominator, 0, f->width), within((rect[1] - MARGIN) * denominator, 0, f->height),
                   within((rect[2] + MARGIN) * denominator, 0, f->width), within((rect[3] + MARGIN) * denominator, 0, f->height)};
  iof_spliced *s = &r->spliced;
  int width, height, components;
  iof_cover(&mcus.x0, &mcus.x1, f->component[0].h, f->across);
  iof_cover(&mcus.y0, &mcus.y1, f->component[0].v, f->down);
  iof_status status = iof_splice(f, &r->segments, r->data, &mcus, s);
  iof_clock_lap(r->counters, IOF_SPLICING);
  if (!status) status = iof_jpeg_open(r->jpeg, s->bytes, s->length, &width, &height, &components);
  if (!status) {
    int x = s->x / denominator, y = s->y / denominator;
    int32_t own[4] = {rect[0] - x, rect[1] - y, rect[2] - x, rect[3] - y};
    status = iof_jpeg_region(r->jpeg, own, denominator, strict, pixels);
    if (!status) {
      pixels->x += x;
      pixels->y += y;
    }
  }
  iof_clock_lap(r->counters, IOF_LIBJPEG);
  return status;
}

/* The place of the scan's marker, or 0 if the header has something between its segments. */
static size_t scan_marker(const uint8_t *data, size_t length) {
  size_t at = 2;
  while (at + 4 <= length && data[at] == 0xFF && data[at + 1] > 0xBF && data[at + 1] < 0xFF && data[at + 1] != 0xDA)
    at += 2 + ((size_t)data[at + 2] << 8 | data[at + 3]);
  return at + 4 <= length && data[at] == 0xFF && data[at + 1] == 0xDA ? at : 0;
}

/* Whether a JPEG has its end-of-image marker: a region can be whole in a truncated file. Entropy-coded data does not
contain these bytes. In a whole file they are the last two, or come before bytes that a camera appended. Those in the
header belong to the thumbnail. */
static int has_end(const uint8_t *data, size_t length) {
  size_t first = scan_marker(data, length), at = length < 2 ? first : length - 1;
  while (at > first && !(data[at - 1] == 0xFF && data[at] == 0xD9)) at--;
  return at > first;
}

/* The file alone decides, so that every machine gives the same pixels. Forcing libjpeg uses it for everything. */
int iof_region_scales(const iof_region *r) { return !r->known || (r->forced && r->way != IOF_BY_SEGMENTS); }

static iof_way choose(const iof_region *r, int denominator) {
  iof_way way = r->known ? r->way : IOF_BY_LIBJPEG;
  if (way == IOF_BY_SEGMENTS && denominator > 1) way = IOF_BY_SPLICE;
  if (way == IOF_BY_SEGMENTS && !r->frame.restart) way = IOF_BY_ROWS;
  if (way == IOF_BY_SPLICE && !iof_spliceable(&r->frame)) way = IOF_BY_LIBJPEG;
  return way;
}

int iof_region_gray(const iof_region *r) { return r->components == 1; }

int iof_region_planar(const iof_region *r) { return r->known ? r->components : iof_jpeg_planar(r->jpeg); }

/* The work on an image, by the path that suits it. Either `pixels` of a rectangle are wanted, or the whole `planes`. */
typedef struct {
  const int32_t *rect;
  int denominator, strict, by_rows;
  iof_pixels *pixels;
  iof_plane *planes;
} order;

static iof_status run_ours(iof_region *r, iof_way way, const order *o) {
  if (o->planes) return planes_ours(r, o->planes);
  if (way == IOF_BY_SPLICE) return decode_spliced(r, o->rect, o->denominator, o->strict, o->pixels);
  return decode_ours(r, o->rect, o->by_rows, o->pixels);
}

static iof_status run_jpeg(iof_region *r, const order *o) {
  int planes = o->planes ? iof_region_planar(r) : 0;
  iof_status status = open_jpeg(r);
  if (!status && !o->planes) status = iof_jpeg_region(r->jpeg, o->rect, o->denominator, o->strict, o->pixels);
  if (!status && o->planes && iof_jpeg_planar(r->jpeg) != planes) status = IOF_UNSUPPORTED;
  if (!status && o->planes) status = iof_jpeg_planes(r->jpeg, o->denominator, o->strict, o->planes);
  iof_clock_lap(r->counters, IOF_LIBJPEG);
  return status;
}

static iof_status run(iof_region *r, iof_way way, const order *o) {
  iof_status status = way == IOF_BY_LIBJPEG ? IOF_CORRUPT : iof_segments_find(&r->segments, &r->frame, r->data, r->length);
  int ended = !status && r->segments.ended, miscounted = status == IOF_CORRUPT && way != IOF_BY_LIBJPEG;
  iof_clock_lap(r->counters, IOF_SCANNING);
  if (!status) status = run_ours(r, way, o);
  if (status && status != IOF_MEMORY) { /* libjpeg decides about damaged and unknown data */
    way = IOF_BY_LIBJPEG;
    status = run_jpeg(r, o);
  }
  if (!status && o->strict && !ended && !has_end(r->data, r->length)) status = IOF_TRUNCATED;
  if (!status && o->strict && miscounted) status = IOF_CORRUPT; /* the damage may lie outside the region */
  if (!status) iof_count(r->counters, way);
  return status;
}

iof_status iof_region_decode(iof_region *r, const int32_t rect[4], int denominator, int strict, int by_rows,
                             iof_pixels *pixels) {
  *pixels = (iof_pixels){0};
  return run(r, choose(r, denominator), &(order){rect, denominator, strict, by_rows, pixels, NULL});
}

iof_status iof_region_planes(iof_region *r, int denominator, int strict, iof_plane planes[3]) {
  iof_way way = choose(r, denominator);
  if (way == IOF_BY_SPLICE) way = IOF_BY_LIBJPEG;
  return run(r, way, &(order){NULL, denominator, strict, 0, NULL, planes});
}
