/* The loops of pixels.h, in a form that the compiler vectorises. Included once for each instruction set, with

    SET     the suffix of the table's name
    TARGET  the target attribute of the functions

No sum of floats and no fused multiply-add: every set gives the same bits. */
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define L(name) JOIN(name, SET)

TARGET static void L(widen)(const uint8_t *restrict from, int16_t *restrict tile) {
  for (int i = 0; i < IOF_TILE; i++) tile[i] = from[i];
}

TARGET static void L(narrow)(const int16_t *restrict tile, uint8_t *restrict to) {
  for (int i = 0; i < IOF_TILE; i++) to[i] = (uint8_t)tile[i];
}

TARGET static void L(line)(int16_t *restrict samples, const iof_line *line) {
  int16_t factor = line->factor, offset = line->offset;
#define WITH(bits) \
  for (int i = 0; i < IOF_TILE; i++) samples[i] = on_line(samples[i], factor, offset, bits)
  FOR_BITS(line)
#undef WITH
}

TARGET static void L(saturation)(int16_t *tile, const iof_line *line) {
  int16_t *restrict r = tile, *restrict g = tile + IOF_TILE, *restrict b = tile + 2 * IOF_TILE, factor = line->factor;
#define WITH(bits)                                          \
  for (int i = 0; i < IOF_TILE; i++) {                      \
    int16_t gray = gray_of(r[i], g[i], b[i]);               \
    r[i] = level(blended(r[i], gray, factor, bits), bits);  \
    g[i] = level(blended(g[i], gray, factor, bits), bits);  \
    b[i] = level(blended(b[i], gray, factor, bits), bits);  \
  }
  FOR_BITS(line)
#undef WITH
}

TARGET static void L(hue)(int16_t *tile, int16_t shift) {
  int16_t *restrict r = tile, *restrict g = tile + IOF_TILE, *restrict b = tile + 2 * IOF_TILE;
  for (int i = 0; i < IOF_TILE; i++) turn_hue(&r[i], &g[i], &b[i], shift);
}

#define LOOP(name, code, first, second, value)                                       \
  TARGET static void L(on_##name)(int16_t *restrict samples, int16_t a, int16_t b) {  \
    (void)a, (void)b;                                                                \
    for (int i = 0; i < IOF_TILE; i++) {                                             \
      int16_t v = samples[i];                                                        \
      samples[i] = (int16_t)(value);                                                 \
    }                                                                                \
  }
IOF_LEVEL_STEPS(LOOP)
#undef LOOP

TARGET static uint32_t L(gray_sum)(const int16_t *tile, int n) {
  const int16_t *restrict r = tile, *restrict g = tile + IOF_TILE, *restrict b = tile + 2 * IOF_TILE;
  uint32_t sum = 0;
  for (int i = 0; i < n; i++) sum += (uint32_t)gray_of(r[i], g[i], b[i]);
  return sum;
}

TARGET static void L(range)(const uint8_t *restrict samples, size_t n, uint8_t *least, uint8_t *most) {
  uint8_t low = 255, high = 0;
  for (size_t i = 0; i < n; i++) {
    low = samples[i] < low ? samples[i] : low;
    high = samples[i] > high ? samples[i] : high;
  }
  *least = low;
  *most = high;
}

TARGET static void L(sharpen)(const iof_three_rows *from, int n, const iof_line *line, uint8_t *restrict to) {
  int16_t factor = line->factor;
  for (int at = 0; at < n; at += BLOCK) {
    const uint8_t *restrict a = from->above + at - 1, *restrict r = from->row + at - 1, *restrict b = from->below + at - 1;
    int16_t sums[BLOCK + 32], means[BLOCK];
    uint8_t made[BLOCK];
    for (int i = 0; i < BLOCK + 32; i++) sums[i] = (int16_t)(a[i] + r[i] + b[i]);
    for (int i = 0; i < BLOCK; i++) {
      uint16_t sum = (uint16_t)(sums[i] + sums[i + 1] + sums[i + 2] + 4 * r[i + 1]);
      means[i] = thirteenth(sum);
    }
#define WITH(bits) \
  for (int i = 0; i < BLOCK; i++) made[i] = (uint8_t)level(blended(r[i + 1], means[i], factor, bits), bits)
    FOR_BITS(line)
#undef WITH
    memcpy(to + at, made, (size_t)(n - at < BLOCK ? n - at : BLOCK));
  }
}

/* Not inlined: GCC would add two rows at a time if it saw both loops, and then not vectorise them. */
TARGET static __attribute__((noinline)) void L(add_bytes)(const uint8_t *restrict row, uint16_t weight, int n, uint16_t *restrict sums) {
  for (int i = 0; i < n; i++) sums[i] = with_tap(sums[i], (uint16_t)(row[i] << 8), weight);
}

TARGET static __attribute__((noinline)) void L(add_words)(const uint16_t *restrict row, uint16_t weight, int n, uint16_t *restrict sums) {
  for (int i = 0; i < n; i++) sums[i] = with_tap(sums[i], row[i], weight);
}

/* On average the shift of a product loses half of the last bit. */
TARGET static void L(blur_down)(const uint8_t *const *rows, const uint16_t *weights, int taps, int n, uint16_t *restrict to) {
  for (int i = 0; i < n; i++) to[i] = (uint16_t)(taps / 2);
  for (int k = 0; k < taps; k++) L(add_bytes)(rows[k], weights[k], n, to);
}

TARGET static void L(blur_across)(const uint16_t *row, const uint16_t *weights, int taps, int n, uint16_t *sums, uint8_t *restrict to) {
  for (int i = 0; i < n; i++) sums[i] = (uint16_t)(128 + taps / 2);
  for (int k = 0; k < taps; k++) L(add_words)(row + k, weights[k], n, sums);
  for (int i = 0; i < n; i++) to[i] = (uint8_t)(sums[i] >> 8);
}

TARGET static void L(places)(const iof_map_row *map, int n, int32_t *restrict place, int32_t *restrict across,
                             int32_t *restrict down) {
  const float *m = map->m;
  float stop_x = map->width, stop_y = map->height, back = map->back;
  float x0 = m[1] * map->y + m[2], y0 = m[4] * map->y + m[5], w0 = m[7] * map->y + 1;
#define WITH(over)                                                              \
  for (int i = 0; i < n; i++) {                                                 \
    float at = (float)i + 0.5f;                                                 \
    float x = (m[0] * at + x0) over - back, y = (m[3] * at + y0) over - back;   \
    int32_t column = place_on(x, stop_x, &across[i]);                           \
    place[i] = place_on(y, stop_y, &down[i]) * map->stride + column;            \
  }
  if (m[6] == 0 && m[7] == 0) { /* a division by one would take a sixth of the time */
    WITH()
  } else {
    WITH(/ (m[6] * at + w0))
  }
#undef WITH
}

TARGET static void L(join)(const uint8_t *restrict r, const uint8_t *restrict g, const uint8_t *restrict b, int n,
                           uint32_t *restrict to) {
  for (int i = 0; i < n; i++) to[i] = r[i] | (uint32_t)g[i] << 8 | (uint32_t)b[i] << 16;
}

TARGET static void L(nearest)(const uint32_t *restrict frame, const int32_t *restrict place, int n, uint32_t *restrict to) {
  for (int i = 0; i < n; i++) to[i] = frame[place[i]];
}

TARGET static void L(between)(const iof_frame_row *from, int n, uint32_t *restrict to) {
  const uint32_t *restrict frame = from->frame;
  const int32_t *restrict place = from->place, *restrict across = from->across, *restrict down = from->down;
  int32_t stride = from->stride;
  for (int i = 0; i < n; i++) {
    uint32_t a = frame[place[i]], b = frame[place[i] + 1], c = frame[place[i] + stride], d = frame[place[i] + stride + 1];
    to[i] = mixed_pixels(a, b, c, d, across[i], down[i]);
  }
}

TARGET static void L(split)(const uint32_t *restrict from, int n, uint8_t *restrict to, size_t plane) {
  for (int i = 0; i < n; i++) to[i] = (uint8_t)from[i];
  for (int i = 0; i < n; i++) to[plane + (size_t)i] = (uint8_t)(from[i] >> 8);
  for (int i = 0; i < n; i++) to[2 * plane + (size_t)i] = (uint8_t)(from[i] >> 16);
}

TARGET static void L(mirror)(const uint8_t *restrict from, int n, uint8_t *restrict to) {
  for (int i = 0; i < n; i++) to[i] = from[n - 1 - i];
}

#define WEAVE(name, type)                                                                                             \
  TARGET static void L(name)(const type *restrict r, const type *restrict g, const type *restrict b, int n, type *restrict to) { \
    for (int i = 0; i < n; i++) to[3 * i] = r[i], to[3 * i + 1] = g[i], to[3 * i + 2] = b[i];                           \
  }
WEAVE(weave_1, uint8_t)
WEAVE(weave_2, uint16_t)
WEAVE(weave_4, uint32_t)
#undef WEAVE

TARGET static void L(mix)(const uint8_t *restrict from, const uint8_t *restrict own, size_t n, float factor, uint8_t *restrict to) {
  for (size_t i = 0; i < n; i++) {
    float v = (float)from[i] + factor * (float)(own[i] - from[i]);
    v = v > 0 ? v : 0;
    to[i] = (uint8_t)(int32_t)(v < 255 ? v : 255);
  }
}

TARGET static void L(smooth)(const iof_three_rows *from, int n, uint8_t *restrict to) {
  const uint8_t *restrict a = from->above, *restrict r = from->row, *restrict b = from->below;
  for (int i = 0; i < n; i++) {
    uint16_t sum = (uint16_t)(a[i - 1] + a[i] + a[i + 1] + r[i - 1] + 5 * r[i] + r[i + 1] + b[i - 1] + b[i] + b[i + 1]);
    to[i] = (uint8_t)thirteenth(sum);
  }
}

TARGET static void L(turn_hue)(uint8_t *restrict planes, size_t plane, size_t n, uint8_t shift) {
  uint8_t *restrict r = planes, *restrict g = planes + plane, *restrict b = planes + 2 * plane;
  for (size_t i = 0; i < n; i++) pillow_hue(&r[i], &g[i], &b[i], shift);
}

TARGET static void L(affine_fixed)(const iof_affine_row *row, const uint32_t start[2], const uint32_t step[2], int n,
                                   int32_t *restrict place) {
  uint32_t x0 = start[0], y0 = start[1], dx = step[0], dy = step[1];
  int32_t width = (int32_t)row->width, height = (int32_t)row->height, stride = row->stride, first = row->first;
  for (int i = 0; i < n; i++) {
    int32_t x = (int32_t)(x0 + (uint32_t)i * dx) >> 16, y = (int32_t)(y0 + (uint32_t)i * dy) >> 16;
    int inside = (x >= 0) & (x < width) & (y >= 0) & (y < height);
    place[i] = inside ? first + y * stride + x : 0;
  }
}

TARGET static void L(affine_places)(const iof_affine_row *row, int n, const iof_affine_places *to) {
  const double *m = row->m;
  double a = m[0], d = m[3], b = m[1] * row->y, e = m[4] * row->y, c = m[2], f = m[5], width = row->width, height = row->height;
  int32_t stride = row->stride, first = row->first, *restrict place = to->place;
  double *restrict across = to->across, *restrict down = to->down;
  for (int i = 0; i < n; i++) {
    double at = (double)i + 0.5, x = a * at + b + c, y = d * at + e + f;
    int inside = (x >= 0) & (x < width) & (y >= 0) & (y < height);
    double right = inside ? x - 0.5 : 0, under = inside ? y - 0.5 : IOF_BEYOND;
    double column = floor(right), line = floor(under);
    across[i] = right - column, down[i] = under - line;
    place[i] = first + (int32_t)line * stride + (int32_t)column;
  }
}

TARGET static void L(affine_linear)(const iof_affine_row *row, const iof_affine_places *at, int n, uint32_t *restrict to) {
  const uint32_t *restrict frame = row->frame;
  const int32_t *restrict place = at->place;
  const double *restrict across = at->across, *restrict down = at->down;
  int32_t stride = row->stride;
  for (int i = 0; i < n; i++) {
    uint32_t a = frame[place[i]], b = frame[place[i] + 1], c = frame[place[i] + stride], d = frame[place[i] + stride + 1];
    to[i] = linear_pixel(a, b, c, d, across[i], down[i]);
  }
}

#define FOUR(at) frame[at], frame[at + 1], frame[at + 2], frame[at + 3]
TARGET static void L(affine_cubic)(const iof_affine_row *row, const iof_affine_places *at, int n, uint32_t *restrict to) {
  const uint32_t *restrict frame = row->frame;
  const int32_t *restrict place = at->place;
  const double *restrict across = at->across, *restrict down = at->down;
  int32_t stride = row->stride;
  for (int i = 0; i < n; i++) {
    int32_t p = place[i] - stride - 1;
    uint32_t pixels[16] = {FOUR(p), FOUR(p + stride), FOUR(p + 2 * stride), FOUR(p + 3 * stride)};
    to[i] = cubic_pixel(pixels, across[i], down[i]);
  }
}
#undef FOUR

TARGET static void L(box_rows)(uint32_t *restrict sums, const iof_box_rows *rows, int n, uint8_t *restrict to) {
  const uint8_t *restrict leaves = rows->leaves, *restrict enters = rows->enters;
  const uint8_t *restrict above = rows->above, *restrict below = rows->below;
  uint32_t near = rows->near, far = rows->far;
  for (int i = 0; i < n; i++) {
    sums[i] += (uint32_t)(enters[i] - leaves[i]);
    to[i] = (uint8_t)((sums[i] * near + (uint32_t)(above[i] + below[i]) * far + (1u << 23)) >> 24);
  }
}

TARGET static void L(luma)(const uint8_t *restrict from, size_t plane, size_t n, uint8_t *restrict to) {
  const uint8_t *restrict r = from, *restrict g = from + plane, *restrict b = from + 2 * plane;
  for (size_t i = 0; i < n; i++) to[i] = luma_of(r[i], g[i], b[i]);
}

TARGET static void L(scale)(const uint8_t *restrict from, int n, float scale, float bias, float *restrict to) {
  for (int i = 0; i < n; i++) to[i] = (float)from[i] * scale + bias;
}

TARGET static void L(half)(const float *restrict from, int n, uint16_t *restrict to) {
  for (int i = 0; i < n; i++) to[i] = half_of(from[i]);
}

TARGET static void L(brain)(const float *restrict from, int n, uint16_t *restrict to) {
  for (int i = 0; i < n; i++) to[i] = brain_of(from[i]);
}

#define NAMED(name, ...) L(on_##name),
const iof_tile_loops JOIN(iof_tiles, SET) = {
    L(widen), L(narrow), L(line), L(saturation), L(hue), IOF_LEVEL_STEPS(NAMED) L(gray_sum), L(range), L(sharpen),
    L(blur_down), L(blur_across), L(places), L(join), L(nearest), L(between), L(split), L(mix), L(smooth), L(turn_hue),
    L(affine_fixed), L(affine_places), L(affine_linear), L(affine_cubic), L(box_rows), L(luma),
    L(mirror), L(weave_1), L(weave_2), L(weave_4), L(scale), L(half), L(brain),
};

#undef NAMED
#undef L
#undef JOIN
#undef JOIN_
