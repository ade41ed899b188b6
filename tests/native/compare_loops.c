/* Compare every table of pixel loops that this machine can run with the scalar one, bit for bit. usage: compare_loops
ROUNDS

Each round is a whole resample of random geometry, with padding and tails. The paths are counted, so that none is left
out unnoticed. Sums of 16 bits are also compared with the exact ones (within 1/20 of a level before the last rounding),
and copies with the source. The checksum covers the scalar results: every machine prints the same one. Exits with 1 at
the first difference. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define MOST 420 /* pixels of a side */
#define GUARD 64

static uint64_t state = 1;

static unsigned draw(unsigned below) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (unsigned)((state >> 20) % below);
}

/* An axis's geometry, as in decode.c and planes.c. */
static iof_span draw_span(int size) {
  int low = (int)draw((unsigned)size), high = low + 1 + (int)draw((unsigned)(size - low)), length = high - low;
  int near = draw(2) ? 1 + (int)draw((unsigned)(2 * length)) : 1 + (int)draw(300);
  double inside = draw(4) ? 0 : draw(8) / 8.0;
  iof_span span = {low + inside, high, low, high, near, 0, near, (int16_t)draw(2), 0};
  if (draw(2)) span.first = (int)draw((unsigned)near), span.outputs = 1 + (int)draw((unsigned)(near - span.first));
  return span;
}

/* Either all levels of a picture, or only the two whose sums come closest to the edges of 16 bits. */
static void draw_samples(uint8_t *to, size_t n) {
  int extreme = (int)draw(3) == 0;
  for (size_t i = 0; i < n; i++) to[i] = (uint8_t)(extreme ? 255 * draw(2) : draw(256));
}

typedef struct {
  iof_span x, y;
  int filter, mirror_x, mirror_y, horizontal_first, plane, layout;
} geometry;

static iof_target target_of(const geometry *g, uint8_t *data) {
  int64_t width = g->x.outputs, height = g->y.outputs;
  iof_target targets[] = {
      {data, 3, 3 * width, 1},                           /* rows of RGB */
      {data, 1, width, width * height},                  /* planes */
      {data + 3 * (width - 1), -3, 3 * width, 1},        /* from right to left */
      {data, 3 * height, 3, 1},                          /* columns of RGB */
      {data + 2, 3, 3 * width, -1},                      /* BGR */
  };
  return targets[g->plane ? g->layout % 2 : g->layout];
}

static void run(iof_resampler *r, const geometry *g, const iof_pixels *pixels, uint8_t *data) {
  iof_status status = iof_axis_make(&r->x, &g->x, g->filter, &r->weights);
  if (!status) status = iof_axis_make(&r->y, &g->y, g->filter, &r->weights);
  if (g->mirror_x) iof_axis_mirror(&r->x, pixels->width);
  if (g->mirror_y) iof_axis_mirror(&r->y, pixels->height);
  iof_target target = target_of(g, data);
  iof_plane plane = {pixels->pixels, pixels->stride, pixels->width, pixels->height, 0, 0};
  if (!status) status = g->plane ? iof_resample_plane(r, &plane, &target) : iof_resample(r, pixels, &target, g->horizontal_first);
  if (status) {
    printf("status %d\n", (int)status);
    exit(2);
  }
}

enum { COPIES, SHORT, SHORT_PLANE, LONG_PLANE, VERTICAL_FIRST, HORIZONTAL_FIRST, EXACT, PATHS };
static const char *const PATH_NAMES[PATHS] = {"copies", "short", "short plane", "plane", "vertical first", "horizontal first",
                                            "exact"};

static int path_of(const iof_resampler *r, const geometry *g) {
  if (iof_is_exact(r)) return EXACT;
  if (!g->plane && r->x.copies && r->y.copies) return COPIES;
  if (iof_fits_short(r)) return g->plane ? SHORT_PLANE : SHORT;
  if (g->plane) return LONG_PLANE;
  return g->horizontal_first ? HORIZONTAL_FIRST : VERTICAL_FIRST;
}

/* The largest distance, in levels, of a result of 16-bit sums from the unrounded sum of the same weights. */
static double worst_of(const iof_resampler *r, const geometry *g, const iof_pixels *pixels, uint8_t *data) {
  const iof_axis *x = &r->x, *y = &r->y;
  iof_target t = target_of(g, data);
  double worst = 0;
  for (int n = 0; n < 50; n++) {
    int i = (int)draw((unsigned)x->outputs), j = (int)draw((unsigned)y->outputs), channel = g->plane ? 0 : (int)draw(3);
    double sum = 0;
    for (int b = 0; b < y->count[j]; b++)
      for (int a = 0; a < x->count[i]; a++) {
        size_t column = (size_t)(x->start[i] + a) * (g->plane ? 1 : 4) + (size_t)channel;
        sum += (double)x->coef[i * x->taps + a] * y->coef[j * y->taps + b] *
               pixels->pixels[(size_t)(y->start[j] + b) * pixels->stride + column];
      }
    double off = sum / (1 << 2 * IOF_PRECISION) - t.data[i * t.x_stride + j * t.y_stride + channel * t.channel_stride];
    off = off < 0 ? -off : off;
    worst = off > worst ? off : worst;
  }
  return worst;
}

typedef struct {
  const iof_loops *loops;
  const char *name;
} table;

static int tables(table found[4]) {
  int n = 0;
#ifdef IOF_X86
  if (__builtin_cpu_supports("avx2")) found[n++] = (table){&iof_loops_avx2, "avx2"};
  if (__builtin_cpu_supports("avx512bw")) found[n++] = (table){&iof_loops_avx512, "avx512bw"};
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi"))
    found[n++] = (table){&iof_loops_vbmi, "avx512vbmi"};
#endif
#ifdef IOF_NEON
  found[n++] = (table){&iof_loops_neon, "neon"};
#endif
  return n;
}

static void be_exact(iof_span *span) { span->exact = 1, span->from -= span->low, span->to -= span->low; }

static geometry draw_geometry(int width, int height) {
  geometry g = {draw_span(width), draw_span(height), (int)draw(IOF_FILTERS), draw(4) == 0, draw(4) == 0, (int)draw(2),
                draw(4) == 0, (int)draw(5)};
  if (g.filter == IOF_NEAREST && draw(4)) g.filter = IOF_BILINEAR;
  if (!g.plane && g.filter != IOF_ALIASED && draw(2)) be_exact(&g.x), be_exact(&g.y);
  return g;
}

int main(int argc, char **argv) {
  table found[4];
  int count = tables(found), rounds = argc > 1 ? atoi(argv[1]) : 1000;
  unsigned long ran[PATHS] = {0};
  uint64_t sum = 0;
  double worst = 0;
  iof_resampler scalar = {.loops = &iof_loops_scalar}, other[4] = {{.loops = NULL}};
  size_t stride = (4 * MOST + 63) & ~(size_t)63, size = 3 * 2 * MOST * (size_t)2 * MOST + 2 * GUARD;
  uint8_t *memory = aligned_alloc(64, stride * MOST + 64), *wanted = malloc(size), *given = malloc(size);
  if (!memory || !wanted || !given) return 2;
  printf("scalar is compared with:");
  for (int t = 0; t < count; t++) printf(" %s", found[t].name), other[t].loops = found[t].loops;
  for (int i = 0; i < rounds; i++) {
    int width = 1 + (int)draw(MOST), height = 1 + (int)draw(draw(4) ? MOST : 12);
    geometry g = draw_geometry(width, height);
    iof_pixels pixels = {.pixels = memory, .stride = (4 * (size_t)width + 63) & ~(size_t)63, .width = width, .height = height};
    size_t used = 3 * (size_t)g.x.outputs * (size_t)g.y.outputs + 2 * GUARD;
    draw_samples(memory, pixels.stride * (size_t)height + 64);
    memset(wanted, 0xA5, used);
    run(&scalar, &g, &pixels, wanted + GUARD);
    int path = path_of(&scalar, &g);
    double off = path <= SHORT_PLANE ? worst_of(&scalar, &g, &pixels, wanted + GUARD) : 0;
    ran[path]++;
    if (path == COPIES && off > 0) return 5;
    worst = off > worst ? off : worst;
    for (size_t b = 0; b < used; b++) sum = sum * 0x100000001B3u + wanted[b];
    for (int t = 0; t < count; t++) {
      memset(given, 0xA5, used);
      run(&other[t], &g, &pixels, given + GUARD);
      if (!memcmp(wanted, given, used)) continue;
      size_t at = 0;
      while (wanted[at] == given[at]) at++;
      printf("\nround %d, filter %d, %s: %s has %d, scalar %d, at byte %ld of %dx%d from %dx%d\n", i, g.filter,
             PATH_NAMES[path], found[t].name, given[at], wanted[at], (long)at - GUARD, g.x.outputs,
             g.y.outputs, g.x.high - g.x.low, g.y.high - g.y.low);
      return 1;
    }
  }
  printf("; %.3f levels", worst);
  for (int p = 0; p < PATHS; p++) printf("%s %s %lu", p ? "," : ";", PATH_NAMES[p], ran[p]);
  printf("\nchecksum %016llx\n", (unsigned long long)sum);
  for (int p = 0; p < PATHS; p++)
    if (!ran[p]) return 3;
  if (worst > 0.55) return 4;
  for (int t = 0; t < count; t++) iof_resampler_free(&other[t]);
  iof_resampler_free(&scalar);
  free(memory), free(wanted), free(given);
  return 0;
}
