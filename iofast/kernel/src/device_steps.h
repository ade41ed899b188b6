/* The steps of iof_work on a device, by a group of threads for each image, and the store into the batch. Loops are those
of a group: a GPU's threads take turns, the host scatters them. Between two of them all threads of the group wait. */
#include "levels.h"

#define MOST_POINTS 16 /* steps on single pixels in one pass over the image */

#ifdef __CUDACC__
#define EACH(i, n) for (int i = (int)threadIdx.x; i < (n); i += (int)blockDim.x)
#define TOGETHER __syncthreads()
#define OF_GROUP __shared__
#else
#define SCATTER 1000003 /* a prime: neighbours are far apart in time, so that no thread can rely on an order */
static int scattered(int turn, int n) { return n % SCATTER ? (int)((int64_t)turn * SCATTER % n) : turn; }
#define EACH(i, n) for (int turn = 0, i = 0; turn < (n) && (i = scattered(turn, n)) >= 0; turn++)
#define TOGETHER (void)0
#define OF_GROUP
#endif

/* A step on single pixels, prepared. */
typedef struct {
  int code, a, b;
  iof_line line;
} device_point;

/* What the threads of an image share. */
typedef struct {
  uint32_t counts[3][256];
  uint8_t tables[3][256];
  uint64_t grays;
  device_point points[MOST_POINTS];
} device_board;

IOF_BOTH void count(uint32_t *counter) {
#ifdef __CUDACC__
  atomicAdd(counter, 1);
#else
  ++*counter;
#endif
}

IOF_BOTH void add_up(uint64_t *sum, uint64_t more) {
#ifdef __CUDACC__
  atomicAdd((unsigned long long *)sum, (unsigned long long)more);
#else
  *sum += more;
#endif
}

IOF_BOTH int channel(uint32_t pixel, int c) { return (int)(pixel >> 8 * c & 255); }

IOF_BOTH uint32_t joined(const int16_t x[3]) { return (uint32_t)x[0] | (uint32_t)x[1] << 8 | (uint32_t)x[2] << 16; }

/* What a table of autocontrast or equalisation has for value v. */
IOF_BOTH uint8_t table_entry(const uint32_t counts[256], int v, int pixels, int code) {
  int least = 0, most = 255;
  uint64_t below = 0;
  while (least < 255 && !counts[least]) least++;
  while (most > 0 && !counts[most]) most--;
  if (code == IOF_AUTOCONTRAST) return stretched(v, least, most);
  for (int u = 0; u < v; u++) below += counts[u];
  return flattened(v, below, ((uint64_t)pixels - counts[most]) / 255);
}

/* The sum of all gray values for contrast, or tables. */
IOF_BOTH void look(const uint32_t *canvas, int pixels, int code, device_board *board) {
  uint64_t grays = 0;
  EACH(v, 3 * 256) board->counts[v >> 8][v & 255] = 0;
  EACH(first, 1) board->grays = 0;
  TOGETHER;
  EACH(p, pixels) {
    uint32_t v = canvas[p];
    if (code == IOF_CONTRAST) grays += (uint64_t)gray_of((int16_t)channel(v, 0), (int16_t)channel(v, 1), (int16_t)channel(v, 2));
    else
      for (int c = 0; c < 3; c++) count(&board->counts[c][channel(v, c)]);
  }
  if (grays) add_up(&board->grays, grays);
  TOGETHER;
  EACH(v, code == IOF_CONTRAST ? 0 : 3 * 256)
  board->tables[v >> 8][v & 255] = table_entry(board->counts[v >> 8], v & 255, pixels, code);
}

IOF_BOTH device_point point_of(int code, const float *f, const device_board *board, int pixels) {
  device_point p = {code, 0, 0, line_of(f[0], 0)};
  if (code == IOF_CONTRAST) p.line = contrast_of(f[0], board->grays, pixels);
  if (code == IOF_HUE) p.a = hue_shift(f);
#define IOF_NUMBERED(name, number, first, second, value) \
  if (code == IOF_##name) p.a = first, p.b = second;
  IOF_LEVEL_STEPS(IOF_NUMBERED)
#undef IOF_NUMBERED
  if (code == IOF_PERMUTE) p.a = whole_of(f[0], 0, 5);
  return p;
}

IOF_BOTH uint32_t at_point(uint32_t v, const device_point *p, const uint8_t tables[3][256]) {
  int16_t x[3] = {(int16_t)channel(v, 0), (int16_t)channel(v, 1), (int16_t)channel(v, 2)}, gray = gray_of(x[0], x[1], x[2]);
  if (p->code == IOF_HUE) turn_hue(&x[0], &x[1], &x[2], (int16_t)p->a);
  IOF_UNROLL
  for (int c = 0; c < 3; c++) switch (p->code) {
      case IOF_BRIGHTNESS:
      case IOF_CONTRAST: x[c] = on_line(x[c], p->line.factor, p->line.offset, p->line.bits); break;
      case IOF_SATURATION: x[c] = level(blended(x[c], gray, p->line.factor, p->line.bits), p->line.bits); break;
#define IOF_CASE(name, number, first, second, value)             \
  case IOF_##name: {                                             \
    int16_t v = x[c], a = (int16_t)p->a, b = (int16_t)p->b;      \
    (void)a, (void)b;                                            \
    x[c] = (int16_t)(value);                                     \
    break;                                                       \
  }
      IOF_LEVEL_STEPS(IOF_CASE)
#undef IOF_CASE
      case IOF_AUTOCONTRAST:
      case IOF_EQUALIZE: x[c] = tables[c][x[c]]; break;
      case IOF_PERMUTE: x[c] = (int16_t)channel(v, channel_of(p->a, c)); break;
      case IOF_LUMA: x[c] = luma_of((uint32_t)channel(v, 0), (uint32_t)channel(v, 1), (uint32_t)channel(v, 2)); break;
    }
  return joined(x);
}

IOF_BOTH int looks(int code) { return code == IOF_CONTRAST || code == IOF_AUTOCONTRAST || code == IOF_EQUALIZE; }

/* Whether a step makes each pixel of that pixel alone. Also of codes without a meaning here: at_point changes nothing. */
IOF_BOTH int is_point(int code) {
  switch (code) {
    case IOF_SHARPNESS:
    case IOF_BLUR:
    case IOF_WARP_NEAREST:
    case IOF_WARP_BILINEAR:
    case IOF_FLIP:
    case IOF_PAD: return 0;
  }
  return 1;
}

/* Read-only, `width` x `height`. */
typedef struct {
  const uint32_t *pixels;
  int width, height;
} device_picture;

IOF_BOTH uint32_t sharpened(const device_picture *from, int x, int y, const iof_line *line) {
  const uint32_t *middle = from->pixels + (size_t)y * (size_t)from->width + x;
  int16_t made[3];
  if (x < 1 || y < 1 || x + 2 > from->width || y + 2 > from->height) return *middle;
  for (int c = 0; c < 3; c++) {
    int own = channel(*middle, c), sum = 4 * own;
    for (int k = 0; k < 9; k++) sum += channel(middle[(k / 3 - 1) * from->width + k % 3 - 1], c);
    made[c] = level(blended((int16_t)own, thirteenth((uint16_t)sum), line->factor, line->bits), line->bits);
  }
  return joined(made);
}

/* Pixel (column, line) of the picture in a frame of one pixel of colour `outside`. */
IOF_BOTH uint32_t framed_at(const device_picture *from, int column, int line, uint32_t outside) {
  int inside = column > 0 && line > 0 && column <= from->width && line <= from->height;
  return inside ? from->pixels[(size_t)(line - 1) * (size_t)from->width + column - 1] : outside;
}

IOF_BOTH uint32_t warped(const device_picture *from, int i, int j, const float *m, int bilinear) {
  float at = (float)i + 0.5f, down = (float)j + 0.5f, back = bilinear ? 0.5f : 0, below = m[6] * at + (m[7] * down + 1);
  float x = (m[0] * at + (m[1] * down + m[2])) / below - back, y = (m[3] * at + (m[4] * down + m[5])) / below - back;
  uint32_t outside = outside_of(m + 8);
  int32_t right, lower, column = place_on(x, (float)from->width, &right), line = place_on(y, (float)from->height, &lower);
  uint32_t a = framed_at(from, column, line, outside);
  if (!bilinear) return a;
  return mixed_pixels(a, framed_at(from, column + 1, line, outside), framed_at(from, column, line + 1, outside),
                      framed_at(from, column + 1, line + 1, outside), right, lower);
}

IOF_BOTH uint32_t padded(const device_picture *from, int i, int j, const float *f) {
  iof_padding p = iof_padding_of(f, from->width, from->height);
  int x = beyond(i + p.left, p.wide, p.edge), y = beyond(j + p.top, p.high, p.edge);
  int16_t outside[3];
  if (x >= 0 && y >= 0) return from->pixels[(size_t)y * (size_t)from->width + x];
  for (int c = 0; c < 3; c++) outside[c] = (int16_t)whole_of(f[5 + c], 0, 255);
  return joined(outside);
}

/* Down, into `rows` with 8 bits of fraction, then across. */
IOF_BOTH void blur(const device_picture *from, const iof_device_blur *blur, uint16_t *rows, uint32_t *to) {
  int width = from->width, pixels = width * from->height;
  EACH(p, pixels) {
    int x = p % width, y = p / width, high = blur->high;
    for (int c = 0; c < 3; c++) {
      uint16_t sum = (uint16_t)(high == 1 ? channel(from->pixels[p], c) << 8 : high / 2);
      for (int k = 0; k < high && high > 1; k++) {
        uint32_t v = from->pixels[(size_t)reflected(y + k - high / 2, from->height) * (size_t)width + x];
        sum = with_tap(sum, (uint16_t)(channel(v, c) << 8), blur->down[k]);
      }
      rows[(size_t)c * (size_t)pixels + p] = sum;
    }
  }
  TOGETHER;
  EACH(p, pixels) {
    int x = p % width, y = p / width, wide = blur->wide;
    int16_t made[3];
    for (int c = 0; c < 3; c++) {
      const uint16_t *row = rows + (size_t)c * (size_t)pixels + (size_t)y * (size_t)width;
      uint16_t sum = (uint16_t)(128 + wide / 2);
      for (int k = 0; k < wide && wide > 1; k++) sum = with_tap(sum, row[reflected(x + k - wide / 2, width)], blur->across[k]);
      made[c] = wide > 1 ? (int16_t)(sum >> 8) : rounded_off(row[x]);
    }
    to[p] = joined(made);
  }
}

/* A step that reads other pixels than the one it makes. */
IOF_BOTH void remake(const iof_device_batch *b, int image, int step, const device_picture *from, uint32_t *to) {
  size_t at = (size_t)image * (size_t)b->work.steps + (size_t)step, pixels = (size_t)b->width * (size_t)b->height;
  const float *f = b->work.numbers + at * IOF_NUMBERS;
  int code = b->work.codes[at];
  iof_line line = line_of(f[0], 0);
  if (code == IOF_BLUR) blur(from, &b->blurs[b->blurred[at]], b->rows + 3 * (size_t)image * pixels, to);
  else
    EACH(p, (int)pixels) {
      int x = p % from->width, y = p / from->width;
      if (code == IOF_SHARPNESS) to[p] = sharpened(from, x, y, &line);
      if (code == IOF_WARP_NEAREST || code == IOF_WARP_BILINEAR) to[p] = warped(from, x, y, f, code == IOF_WARP_BILINEAR);
      if (code == IOF_FLIP)
        to[p] = from->pixels[(f[1] != 0 ? from->height - 1 - y : y) * from->width + (f[0] != 0 ? from->width - 1 - x : x)];
      if (code == IOF_PAD) to[p] = padded(from, x, y, f);
    }
}

IOF_BOTH void stage_steps(const iof_device_batch *b, int image) {
  OF_GROUP device_board board;
  int pixels = b->width * b->height, moved = 0, steps = b->work.steps, stop;
  const int8_t *codes = b->work.codes + (size_t)image * (size_t)steps;
  const float *numbers = b->work.numbers + (size_t)image * (size_t)steps * IOF_NUMBERS;
  for (int step = 0; step < steps; step = stop) {
    uint32_t *canvas = (moved ? b->other : b->canvas) + (size_t)image * (size_t)pixels;
    stop = step + 1;
    if (!is_point(codes[step])) {
      device_picture from = {canvas, b->width, b->height};
      remake(b, image, step, &from, (moved ? b->canvas : b->other) + (size_t)image * (size_t)pixels);
      moved = !moved;
    } else {
      while (stop < steps && stop - step < MOST_POINTS && is_point(codes[stop]) && !looks(codes[stop])) stop++;
      if (looks(codes[step])) look(canvas, pixels, codes[step], &board);
      EACH(k, stop - step) board.points[k] = point_of(codes[step + k], numbers + (step + k) * IOF_NUMBERS, &board, pixels);
      TOGETHER;
      EACH(p, pixels) {
        uint32_t v = canvas[p];
        for (int k = 0; k < stop - step; k++) v = at_point(v, &board.points[k], board.tables);
        canvas[p] = v;
      }
    }
    TOGETHER;
  }
  EACH(first, 1) b->moved[image] = moved;
}

/* Value of a pixel after its steps: normalised, erased. */
IOF_BOTH float finished_at(const iof_device_batch *b, int image, int x, int y, int c) {
  const iof_work *work = &b->work;
  int place = y * b->width + x;
  const uint32_t *canvas = (b->moved[image] ? b->other : b->canvas) + (size_t)image * (size_t)b->width * (size_t)b->height;
  float value = (float)channel(canvas[place], c) * work->scale[c] + work->bias[c];
  for (int e = 0; e < work->erasings; e++) {
    size_t at = (size_t)image * (size_t)work->erasings + (size_t)e;
    const int32_t *box = work->erased + 4 * at;
    uint32_t number = (uint32_t)work->noise[at];
    if (y < box[0] || y >= box[2] || x < box[1] || x >= box[3]) continue;
    value = work->fills[3 * at + (size_t)c];
    if (number) value = value + noise_at(number, (uint32_t)place, (uint32_t)c) * work->amounts[3 * e + c];
  }
  return value;
}

IOF_BOTH void put(const iof_device_batch *b, uint8_t *to, float value) {
  if (b->type == IOF_BYTES) *to = (uint8_t)value;
  else if (b->type == IOF_FLOAT32) *(float *)(void *)to = value;
  else *(uint16_t *)(void *)to = b->type == IOF_BFLOAT16 ? brain_of(value) : half_of(value);
}

IOF_BOTH uint8_t *place_in_batch(const iof_device_batch *b, int image, int x, int y) {
  return b->out + image * b->row_stride + y * b->y_stride + x * b->x_stride;
}

IOF_BOTH void stage_store(const iof_device_batch *b, int image, int thread) {
  int y = thread / b->width, x = thread - y * b->width, other = b->mix.partners ? (int)b->mix.partners[image] : image;
  uint8_t *to = place_in_batch(b, image, x, y);
  for (int c = 0; c < 3; c++) {
    float value = finished_at(b, image, x, y, c);
    if (other != image) {
      const int32_t *patch = b->mix.patches + 4 * image;
      float share = b->mix.shares[image], rest = 1 - share, theirs = finished_at(b, other, x, y, c);
      value = value * share + theirs * rest;
      if (y >= patch[0] && y < patch[2] && x >= patch[1] && x < patch[3]) value = theirs;
    }
    put(b, to + c * b->channel_stride, value);
  }
}
