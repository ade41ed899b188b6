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

/* Use the most bits that keep factor and result within 16. */
iof_line iof_line_of(float factor, float offset) {
  factor = !(factor > 0) ? 0 : factor > IOF_MOST_FACTOR ? IOF_MOST_FACTOR : factor;
  iof_line line = {.bits = factor < 2 ? 5 : factor < 8 ? 3 : 0};
  line.factor = (int16_t)fminf(rintf(factor * (float)(1 << (line.bits + 9))), INT16_MAX);
  line.offset = (int16_t)((int)rintf(offset * (float)(1 << line.bits)) + (line.bits > 0));
  return line;
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
      case IOF_SOLARIZE: loops->solarize(samples, s->a); break;
      case IOF_POSTERIZE: loops->mask(samples, s->a); break;
      case IOF_ADD_BELOW: loops->below(samples, s->a, s->b); break;
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

/* Contrast: factor * x + (1 - factor) * mean of the gray values so far. */
static stage contrast(const iof_tile_loops *loops, run *r, iof_canvas *canvas, float factor) {
  uint64_t sum = 0;
  flush(loops, r, canvas, &sum);
  float mean = (float)((double)sum / ((double)canvas->width * canvas->height));
  factor = fminf(fmaxf(factor, 0), IOF_MOST_FACTOR);
  return (stage){.code = IOF_CONTRAST, .line = iof_line_of(factor, mean * (1 - factor))};
}

/* Autocontrast: x becomes (x - least) * 255 / (most - least); a channel of one value is unchanged. */
static void stretch(const iof_tile_loops *loops, const uint8_t *samples, size_t pixels, uint8_t table[256]) {
  uint8_t least, most;
  loops->range(samples, pixels, &least, &most);
  float scale = (float)(most - least) * (float)(1.0 / 255);
  for (int v = 0; v < 256; v++) {
    float stretched = least == most ? (float)v : (float)(v - least) / scale;
    table[v] = (uint8_t)(stretched < 0 ? 0 : stretched > 255 ? 255 : stretched);
  }
}

/* Pillow's equalisation. A value becomes the number of steps that all smaller values fill. A step is a 255th of all
pixels except those of the largest value. */
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
  for (int v = 0; v < 256; below += counts[0][v++]) {
    uint64_t level = step ? (below + step / 2) / step : (uint64_t)v;
    table[v] = (uint8_t)(level > 255 ? 255 : level);
  }
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

int iof_whole(float value, int least, int most) {
  return !(value > (float)least) ? least : value > (float)most ? most : (int)value;
}

static int16_t whole(float value, int least, int most) { return (int16_t)iof_whole(value, least, most); }

/* Make the stage of a step on single pixels. Steps that need the whole image look at it first. */
static stage stage_of(const iof_tile_loops *loops, run *r, iof_canvas *canvas, int code, const float *f) {
  stage s = {.code = code};
  switch (code) {
    case IOF_CONTRAST: s = contrast(loops, r, canvas, f[0]); break;
    case IOF_AUTOCONTRAST:
    case IOF_EQUALIZE: s = histogram(loops, r, canvas, code); break;
    case IOF_BRIGHTNESS:
    case IOF_SATURATION: s.line = iof_line_of(f[0], 0); break;
    case IOF_HUE: s.a = whole(rintf(f[0] * 6 * 8192), -3 * 8192, 3 * 8192); break;
    case IOF_SOLARIZE: s.a = whole(ceilf(f[0]), 0, 256); break;
    case IOF_POSTERIZE: s.a = (int16_t)(0xFF & 0xFF00 >> whole(f[0], 0, 8)); break;
    case IOF_ADD_BELOW: s.a = whole(ceilf(f[0]), 0, 256), s.b = whole(f[1], 0, 255); break;
  }
  return s;
}

/* Channel c becomes what channel orders[which][c] was. */
static void permute(const iof_canvas *canvas, int which, uint8_t *to) {
  static const uint8_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (size_t c = 0; c < 3; c++) memcpy(to + c * canvas->plane, canvas->planes + orders[which][c] * canvas->plane, canvas->plane);
}

static void luma(const iof_tile_loops *loops, const iof_canvas *canvas, uint8_t *to) {
  loops->luma(canvas->planes, canvas->plane, (size_t)canvas->width * (size_t)canvas->height, to);
  memcpy(to + canvas->plane, to, canvas->plane);
  memcpy(to + 2 * canvas->plane, to, canvas->plane);
}

/* Apply a filter or a change of geometry. Its other memory becomes the canvas. */
static iof_status whole_image(iof_painter *painter, int code, const float *f, iof_canvas *canvas) {
  uint8_t *to = planes_in(&painter->other, canvas);
  iof_status status = to ? IOF_OK : IOF_MEMORY;
  iof_line line = iof_line_of(f[0], 0);
  if (!status && code == IOF_SHARPNESS) iof_sharpen(painter->loops, canvas, &line, to);
  if (!status && code == IOF_BLUR) status = iof_blur(painter, canvas, f, to);
  if (!status && (code == IOF_WARP_NEAREST || code == IOF_WARP_BILINEAR))
    status = iof_warp(painter, canvas, f, code == IOF_WARP_BILINEAR, to);
  if (!status && code == IOF_FLIP) iof_flip(painter->loops, canvas, f[0] != 0, f[1] != 0, to);
  if (!status && code == IOF_PAD) status = iof_pad(painter, canvas, f, to);
  if (!status && code == IOF_PERMUTE) permute(canvas, iof_whole(f[0], 0, 5), to);
  if (!status && code == IOF_LUMA) luma(painter->loops, canvas, to);
  if (!status && code >= IOF_PILLOW_BRIGHTNESS) status = iof_pillow_step(painter, code, f, canvas, to);
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
    if (code <= IOF_NOTHING || code >= IOF_STEPS) continue;
    if (code >= IOF_SHARPNESS || r.count == MOST_STAGES) flush(painter->loops, &r, canvas, NULL);
    if (code >= IOF_SHARPNESS) {
      status = whole_image(painter, code, f, canvas);
    } else {
      stage next = stage_of(painter->loops, &r, canvas, code, f);
      r.stages[r.count++] = next;
    }
  }
  flush(painter->loops, &r, canvas, NULL);
  return status;
}
