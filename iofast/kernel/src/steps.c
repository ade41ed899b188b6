/* The steps of an image, one after another; consecutive steps on single pixels run tile by tile. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pixels.h"

#define MOST_STAGES 8 /* steps in one pass over the tiles */

/* A step on single pixels, prepared for any tile. */
typedef struct {
  int code;
  iof_line line;
  int16_t a, b;
} stage;

typedef struct {
  stage stages[MOST_STAGES];
  int count;
  uint8_t tables[3][256]; /* of the one stage that is a table lookup */
} run;

#define LOOKED_UP IOF_AUTOCONTRAST /* the code of that stage, whichever step made its tables */

void iof_painter_free(iof_painter *painter) {
  iof_buffer *all[] = {&painter->canvas, &painter->other, &painter->rows, &painter->lines};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
}

static uint8_t *planes_in(iof_buffer *buffer, const iof_canvas *canvas) {
  uint8_t *memory = iof_reserve(buffer, 3 * canvas->plane + 2 * IOF_SLACK);
  return memory ? memory + IOF_SLACK : NULL;
}

iof_status iof_canvas_make(iof_painter *painter, int width, int height, iof_canvas *canvas) {
  size_t pixels = (size_t)width * (size_t)height;
  canvas->width = width, canvas->height = height;
  canvas->plane = (pixels + IOF_TILE - 1) / IOF_TILE * IOF_TILE;
  canvas->planes = planes_in(&painter->canvas, canvas);
  return canvas->planes ? IOF_OK : IOF_MEMORY;
}

static void look_up(int16_t *samples, const uint8_t table[256]) {
  for (int i = 0; i < IOF_TILE; i++) samples[i] = table[samples[i]];
}

static void do_stage(const iof_tile_loops *loops, const run *r, const stage *s, int16_t *tile) {
  if (s->code == IOF_SATURATION) loops->saturation(tile, &s->line);
  if (s->code == IOF_HUE) loops->hue(tile, s->a);
  for (int c = 0; c < 3; c++) {
    int16_t *samples = tile + c * IOF_TILE;
    switch (s->code) {
      case IOF_BRIGHTNESS:
      case IOF_CONTRAST: loops->line(samples, &s->line); break;
#define IOF_CASE(name, ...) \
      case IOF_##name: loops->on_##name(samples, s->a, s->b); break;
      IOF_LEVEL_STEPS(IOF_CASE)
#undef IOF_CASE
      case LOOKED_UP: look_up(samples, r->tables[c]); break;
    }
  }
}

/* Run all stages so far. Adds up the resulting gray values if `grays` is not NULL. */
static void flush(const iof_tile_loops *loops, run *r, iof_canvas *canvas, uint64_t *grays) {
  _Alignas(64) int16_t tile[3 * IOF_TILE];
  size_t pixels = (size_t)canvas->width * (size_t)canvas->height;
  for (size_t at = 0; at < pixels && (r->count || grays); at += IOF_TILE) {
    int n = pixels - at < IOF_TILE ? (int)(pixels - at) : IOF_TILE;
    for (size_t c = 0; c < 3; c++) loops->widen(canvas->planes + c * canvas->plane + at, tile + c * IOF_TILE);
    for (int i = 0; i < r->count; i++) do_stage(loops, r, &r->stages[i], tile);
    if (grays) *grays += loops->gray_sum(tile, n);
    for (size_t c = 0; c < 3 && r->count; c++) loops->narrow(tile + c * IOF_TILE, canvas->planes + c * canvas->plane + at);
  }
  r->count = 0;
}

/* The mean gray value is that after the stages so far. */
static stage contrast(const iof_tile_loops *loops, run *r, iof_canvas *canvas, float factor) {
  uint64_t sum = 0;
  flush(loops, r, canvas, &sum);
  return (stage){.code = IOF_CONTRAST, .line = contrast_of(factor, sum, (double)canvas->width * canvas->height)};
}

static void stretch(const iof_tile_loops *loops, const uint8_t *samples, size_t pixels, uint8_t table[256]) {
  uint8_t least, most;
  loops->range(samples, pixels, &least, &most);
  for (int v = 0; v < 256; v++) table[v] = stretched(v, least, most);
}

static void flatten(const uint8_t *samples, size_t pixels, uint8_t table[256]) {
  uint32_t counts[4][256] = {{0}}; /* several counters, so that equal neighbours do not wait for each other */
  uint64_t below = 0, step;
  int largest = 255;
  size_t at = 0;
  for (; at + 4 <= pixels; at += 4) {
    uint32_t four; /* one load for all of them */
    memcpy(&four, samples + at, sizeof four);
    for (int k = 0; k < 4; k++) counts[k][four >> 8 * k & 255]++;
  }
  for (; at < pixels; at++) counts[0][samples[at]]++;
  for (int v = 0; v < 256; v++) counts[0][v] += counts[1][v] + counts[2][v] + counts[3][v];
  while (largest > 0 && !counts[0][largest]) largest--;
  step = (pixels - counts[0][largest]) / 255;
  for (int v = 0; v < 256; below += counts[0][v++]) table[v] = flattened(v, below, step);
}

static stage histogram(const iof_tile_loops *loops, run *r, iof_canvas *canvas, int code) {
  size_t pixels = (size_t)canvas->width * (size_t)canvas->height;
  flush(loops, r, canvas, NULL);
  for (size_t c = 0; c < 3; c++) {
    const uint8_t *samples = canvas->planes + c * canvas->plane;
    if (code == IOF_EQUALIZE) flatten(samples, pixels, r->tables[c]);
    if (code == IOF_AUTOCONTRAST) stretch(loops, samples, pixels, r->tables[c]);
  }
  return (stage){.code = LOOKED_UP};
}

/* Make the stage of a step on single pixels. Steps that need the whole image look at it first. */
static stage stage_of(const iof_tile_loops *loops, run *r, iof_canvas *canvas, int code, const float *f) {
  stage s = {.code = code};
  switch (code) {
    case IOF_CONTRAST: s = contrast(loops, r, canvas, f[0]); break;
    case IOF_AUTOCONTRAST:
    case IOF_EQUALIZE: s = histogram(loops, r, canvas, code); break;
    case IOF_BRIGHTNESS:
    case IOF_SATURATION: s.line = line_of(f[0], 0); break;
    case IOF_HUE: s.a = hue_shift(f); break;
#define IOF_CASE(name, code, first, second, value) \
    case IOF_##name: s.a = (int16_t)(first), s.b = (int16_t)(second); break;
    IOF_LEVEL_STEPS(IOF_CASE)
#undef IOF_CASE
  }
  return s;
}

/* Channel c becomes what channel orders[which][c] was. */
static void permute(const iof_canvas *canvas, int which, uint8_t *to) {
  for (size_t c = 0; c < 3; c++) memcpy(to + c * canvas->plane, canvas->planes + (size_t)channel_of(which, (int)c) * canvas->plane, canvas->plane);
}

static void luma(const iof_tile_loops *loops, const iof_canvas *canvas, uint8_t *to) {
  loops->luma(canvas->planes, canvas->plane, (size_t)canvas->width * (size_t)canvas->height, to);
  memcpy(to + canvas->plane, to, canvas->plane);
  memcpy(to + 2 * canvas->plane, to, canvas->plane);
}

/* Whether a step looks at single pixels, in tiles; the others make a new image of the old one. */
static int on_tiles(int code) {
  switch (code) {
    case IOF_BRIGHTNESS:
    case IOF_CONTRAST:
    case IOF_SATURATION:
    case IOF_HUE:
    case IOF_AUTOCONTRAST:
    case IOF_EQUALIZE:
#define IOF_CASE(name, ...) case IOF_##name:
    IOF_LEVEL_STEPS(IOF_CASE)
#undef IOF_CASE
      return 1;
  }
  return 0;
}

/* Apply a filter or a change of geometry. Its other memory becomes the canvas. */
static iof_status whole_image(iof_painter *painter, int code, const float *f, iof_canvas *canvas) {
  uint8_t *to = planes_in(&painter->other, canvas);
  iof_status status = to ? IOF_OK : IOF_MEMORY;
  iof_line line = line_of(f[0], 0);
  if (!status) switch (code) {
      case IOF_SHARPNESS: iof_sharpen(painter->loops, canvas, &line, to); break;
      case IOF_BLUR: status = iof_blur(painter, canvas, f, to); break;
      case IOF_WARP_NEAREST:
      case IOF_WARP_BILINEAR: status = iof_warp(painter, canvas, f, code == IOF_WARP_BILINEAR, to); break;
      case IOF_FLIP: iof_flip(painter->loops, canvas, f[0] != 0, f[1] != 0, to); break;
      case IOF_PAD: status = iof_pad(painter, canvas, f, to); break;
      case IOF_PERMUTE: permute(canvas, whole_of(f[0], 0, 5), to); break;
      case IOF_LUMA: luma(painter->loops, canvas, to); break;
      case IOF_PILLOW_BRIGHTNESS:
      case IOF_PILLOW_CONTRAST:
      case IOF_PILLOW_COLOR:
      case IOF_PILLOW_SHARPNESS:
      case IOF_PILLOW_AUTOCONTRAST:
      case IOF_PILLOW_HUE:
      case IOF_PILLOW_BLUR:
      case IOF_PILLOW_AFFINE_NEAREST:
      case IOF_PILLOW_AFFINE_BILINEAR:
      case IOF_PILLOW_AFFINE_BICUBIC: status = iof_pillow_step(painter, code, f, canvas, to); break;
      default: return IOF_OK; /* a code without a meaning changes nothing */
    }
  if (!status) {
    iof_buffer old = painter->canvas;
    painter->canvas = painter->other, painter->other = old;
    canvas->planes = to;
  }
  return status;
}

iof_status iof_take_steps(iof_painter *painter, const iof_work *work, int64_t row, iof_canvas *canvas) {
  iof_status status = IOF_OK;
  run r = {.count = 0};
  for (int i = 0; i < work->steps && !status; i++) {
    int code = work->codes[row * work->steps + i];
    const float *f = work->numbers + (row * work->steps + i) * IOF_NUMBERS;
    if (code == IOF_NOTHING) continue;
    if (!on_tiles(code) || r.count == MOST_STAGES) flush(painter->loops, &r, canvas, NULL);
    if (!on_tiles(code)) {
      status = whole_image(painter, code, f, canvas);
    } else {
      stage next = stage_of(painter->loops, &r, canvas, code, f);
      r.stages[r.count++] = next;
    }
  }
  flush(painter->loops, &r, canvas, NULL);
  return status;
}
