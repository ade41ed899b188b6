/* The stages of device.h: compiled here for the host, and by NVRTC for a GPU. */
#include "device.h"

#include "device_steps.h"
#include "entropy.h"

IOF_BOTH int smaller(int a, int b) { return a < b ? a : b; }
IOF_BOTH int within(int value, int high) { return value < 0 ? 0 : value > high ? high : value; }

IOF_BOTH void raise_to(int32_t *value, int32_t least) {
#ifdef __CUDACC__
  atomicMax(value, least);
#else
  if (*value < least) *value = least;
#endif
}

IOF_BOTH void mark(int32_t *flags, int32_t flag) {
#ifdef __CUDACC__
  atomicOr(flags, flag);
#else
  *flags |= flag;
#endif
}

/* One axis of the stored image, and the upright axis that it shows: axis.c has the same in sums of vectors. */
typedef struct {
  double scale, support, inverse;
  int low, length, size, virtual_size, first, outputs, reverse, mirror, copies;
} device_axis;

IOF_BOTH device_axis axis_of(const iof_device_batch *b, const iof_device_image *m, int stored) {
  int turned = m->exif >= 5 && m->exif <= 8, down = stored != turned;
  int mirror_x = m->exif == 2 || m->exif == 3 || m->exif == 6 || m->exif == 7;
  int mirror_y = m->exif == 3 || m->exif == 4 || m->exif == 7 || m->exif == 8;
  device_axis a;
  a.low = down ? m->y0 : m->x0;
  a.length = (down ? m->y1 : m->x1) - a.low;
  a.size = stored ? m->file.height : m->file.width;
  a.virtual_size = down ? m->virtual_h : m->virtual_w;
  a.first = down ? m->y : m->x;
  a.outputs = down ? b->height : b->width;
  a.reverse = !down && m->flip;
  a.mirror = down ? mirror_y : mirror_x;
  a.copies = a.virtual_size == a.length;
  a.scale = (double)a.length / a.virtual_size;
  a.support = a.scale < 1 || m->aliased ? 1 : a.scale;
  a.inverse = 1 / a.support;
  return a;
}

/* The inputs of output `slot`, before the mirror; returns how many. `before` is the distance to the first. */
IOF_BOTH int see(const device_axis *a, int slot, int *start, double *before) {
  int i = a->reverse ? a->outputs - 1 - slot : slot;
  *before = 0;
  *start = a->low + smaller(a->first + i, a->length - 1);
  if (a->copies) return 1;
  double centre = (a->first + 0.5 + i) * a->scale, end = a->length - 1e-6;
  centre = centre < end ? centre : end;
  int from = (int)(centre - a->support + 0.5), to = (int)(centre + a->support + 0.5);
  from = from < 0 ? 0 : from;
  to = to > a->length ? a->length : to;
  *start = a->low + from;
  *before = from - centre;
  return within(to - from, IOF_DEVICE_TAPS);
}

IOF_BOTH int start_of(const device_axis *a, int slot) {
  int start;
  double before;
  int count = see(a, slot, &start, &before);
  return a->mirror ? a->size - start - count : start;
}

IOF_BOTH void stage_see(const iof_device_batch *b, int image, int thread) {
  int stored = thread / b->room, slot = thread % b->room, start;
  double before;
  device_axis a = axis_of(b, &b->images[image], stored);
  if (slot < a.outputs) raise_to(&b->taps[2 * image + stored], (see(&a, slot, &start, &before) + 1) & ~1);
}

/* Whether the samples of a group of outputs fit a window of the CPU's vectors, as iof_fits_short requires. */
IOF_BOTH int fits_window(const device_axis *a, int slot, int group) {
  int difference = slot % group ? 0 : start_of(a, smaller(slot + group, a->outputs) - 1) - start_of(a, slot);
  return difference <= 2 * group - 2 && -difference <= 2 * group - 2;
}

IOF_BOTH float linear(float x) {
  float left = 1 - float_of(bits_of(x) & 0x7FFFFFFF);
  return left > 0 ? left : 0;
}

IOF_BOTH void stage_weigh(const iof_device_batch *b, int image, int thread) {
  int stored = thread / b->room, slot = thread % b->room, axis = 2 * image + stored, start;
  int taps = b->taps[axis];
  double before;
  device_axis a = axis_of(b, &b->images[image], stored);
  if (slot >= a.outputs) return;
  int count = see(&a, slot, &start, &before);
  if (!stored && !(fits_window(&a, slot, 8) && fits_window(&a, slot, 32))) mark(&b->status[image], IOF_DEVICE_WIDE);
  if (taps > 8) mark(&b->status[image], IOF_DEVICE_WIDE);
  int16_t *weights = b->weights + (size_t)axis * IOF_DEVICE_TAPS * (size_t)b->room + slot;
  b->starts[(size_t)axis * (size_t)b->room + (size_t)slot] = a.mirror ? a.size - start - count : start;
  b->counts[(size_t)axis * (size_t)b->room + (size_t)slot] = count;
  float step = (float)a.inverse, first = ((float)before + 0.5f) * step, x = first, sum = 0, upto = 0;
  for (int k = 0; k < count; k++, x += step) sum += linear(x);
  float scale = 1 / (sum == 0 ? 1 : sum);
  int done = 1 << 17;
  x = first;
  for (int k = 0; k < taps; k++, x += step) {
    if (k < count) upto += linear(x) * scale;
    int next = (int)(upto * 16384 + ((1 << 17) + 0.5f)), weight = a.copies ? (k ? 0 : 16384) : next - done;
    int place = a.mirror && k < count ? count - 1 - k : k;
    weights[(size_t)place * (size_t)b->room] = (int16_t)weight;
    done = next;
  }
}

/* A component in the memory of an image's coefficients and samples. */
typedef struct {
  int h, v, fours, rows; /* rows of blocks */
  int block;             /* number of its first block */
  uint64_t samples;
} device_plane;

IOF_BOTH device_plane plane_of(const iof_device_image *m, int component) {
  int rows = m->mcu_y1 - m->mcu_y0, luma = m->file.v * rows * m->fours[0], chroma = rows * m->fours[1];
  device_plane p;
  p.h = component ? 1 : m->file.h;
  p.v = component ? 1 : m->file.v;
  p.fours = m->fours[component];
  p.rows = p.v * rows;
  p.block = component ? 4 * (luma + (component - 1) * chroma) : 0;
  p.samples = m->samples + 64 * (uint64_t)p.block;
  return p;
}

/* Block row `v` and column `h` of MCU (x, y), counted from the region's first. */
IOF_BOTH int16_t *block_of(const iof_device_batch *b, const iof_device_image *m, const device_plane *p, int x, int y, int h, int v) {
  int column = x * p->h + h, row = y * p->v + v;
  return b->coefs + m->coefs + (size_t)(p->block / 4 + row * p->fours + (column >> 2)) * IOF_FOUR + 8 * (column & 3);
}

IOF_BOTH void stage_entropy(const iof_device_batch *b, int image, int thread) {
  const iof_device_image *m = &b->images[image];
  const iof_device_file *f = &m->file;
  int segment = m->first + thread / m->in_row * m->step + thread % m->in_row;
  const uint8_t *record = b->jpegs + f->place, *scan = record + f->scan;
  const uint32_t *begin = (const uint32_t *)(const void *)(record + 384);
  const uint8_t *end = scan + begin[segment + 1];
  const iof_codes *dc0 = b->codes + f->dc[0], *ac0 = b->codes + f->ac[0];
  device_plane planes[3];
  IOF_UNROLL
  for (int c = 0; c < 3; c++) planes[c] = plane_of(m, c);
  int32_t last[3] = {0, 0, 0};
  stream s = {0, 0, scan + begin[segment], 0};
  int mcu = segment * f->restart, stop = smaller(mcu + f->restart, (m->mcu_y1 - 1) * f->across + m->mcu_x1), whole = 1;
  int y = mcu / f->across, x = mcu % f->across;
  if (x + f->restart <= f->across) stop = smaller(stop, y * f->across + m->mcu_x1);
  for (; mcu < stop && whole; mcu++) {
    int keep = x >= m->mcu_x0 && x < m->mcu_x1 && y >= m->mcu_y0 && y < m->mcu_y1, at_x = x - m->mcu_x0, at_y = y - m->mcu_y0;
    for (int k = 0; k < f->h * f->v; k++) {
      int v = k / f->h, h = k - v * f->h;
      decode_block(&s, dc0, ac0, &last[0], keep ? block_of(b, m, &planes[0], at_x, at_y, h, v) : b->coefs, keep);
    }
    IOF_UNROLL
    for (int c = 1; c < 3; c++)
      if (c < f->components)
        decode_block(&s, b->codes + f->dc[c], b->codes + f->ac[c], &last[c],
                     keep ? block_of(b, m, &planes[c], at_x, at_y, 0, 0) : b->coefs, keep);
    whole = s.at <= end + 8 && !s.damaged;
    if (++x == f->across) x = 0, y++;
  }
  if (!whole || (s.at - end) * 8 > (int)(s.count & 63)) mark(&b->status[image], IOF_DEVICE_DAMAGED);
}

IOF_BOTH void stage_blocks(const iof_device_batch *b, int image, int thread) {
  const iof_device_image *m = &b->images[image];
  int component = 0;
  device_plane p = plane_of(m, 0);
  for (int c = 1; c < m->file.components; c++) {
    device_plane next = plane_of(m, c);
    if (thread >= next.block) p = next, component = c;
  }
  int block = thread - p.block, row = block / (4 * p.fours), column = block - row * 4 * p.fours;
  const int16_t *coefs = b->coefs + m->coefs + (size_t)(thread >> 2) * IOF_FOUR + 8 * (thread & 3);
  const uint16_t *quant = (const uint16_t *)(const void *)(b->jpegs + m->file.place) + 64 * component;
  size_t stride = 32 * (size_t)p.fours;
  uint8_t *to = b->samples + p.samples + 8 * (size_t)row * stride + 8 * (size_t)column;
  if (!inverse(coefs, quant, to, stride)) mark(&b->status[image], IOF_DEVICE_DAMAGED);
}

/* Sample (x, y) of a plane of the image; beyond the region, the nearest of it. */
IOF_BOTH int sample_at(const iof_device_batch *b, const iof_device_image *m, const device_plane *p, int x, int y) {
  int stride = 32 * p->fours, column = within(x - 8 * p->h * m->mcu_x0, stride - 1);
  int row = within(y - 8 * p->v * m->mcu_y0, 8 * p->rows - 1);
  return b->samples[p->samples + (size_t)row * (size_t)stride + (size_t)column];
}

/* The sample of chroma at pixel (x, y), interpolated. */
IOF_BOTH int chroma_at(const iof_device_batch *b, const iof_device_image *m, int component, int x, int y) {
  const iof_device_file *f = &m->file;
  device_plane p = plane_of(m, component);
  if (f->h == 1) return sample_at(b, m, &p, x, y);
  int tall = f->v == 2, row = tall ? y >> 1 : y, other = tall ? within(row + (y & 1 ? 1 : -1), ((f->height + 1) >> 1) - 1) : row;
  int column = x >> 1, next = within(column + (x & 1 ? 1 : -1), ((f->width + 1) >> 1) - 1);
  int near = blended_samples(sample_at(b, m, &p, column, row), sample_at(b, m, &p, column, other));
  int far = blended_samples(sample_at(b, m, &p, next, row), sample_at(b, m, &p, next, other));
  return spread_sums(near, far, x & 1 ? (tall ? 7 : 8) : (tall ? 8 : 4));
}

IOF_BOTH void stage_colour(const iof_device_batch *b, int image, int thread) {
  const iof_device_image *m = &b->images[image];
  int width = m->right - m->left, y = m->top + thread / width, x = m->left + thread % width;
  if (!m->file.components) {
    const uint8_t *raw = b->jpegs + m->file.place + 3 * ((size_t)y * (size_t)m->file.width + (size_t)x);
    b->pixels[m->pixels + (uint64_t)thread] = raw[0] | (uint32_t)raw[1] << 8 | (uint32_t)raw[2] << 16;
    return;
  }
  device_plane luma = plane_of(m, 0);
  int gray = m->file.components == 1, cb = gray ? 128 : chroma_at(b, m, 1, x, y), cr = gray ? 128 : chroma_at(b, m, 2, x, y);
  uint8_t rgb[3];
  to_rgb(sample_at(b, m, &luma, x, y), cb, cr, rgb);
  b->pixels[m->pixels + (uint64_t)thread] = rgb[0] | (uint32_t)rgb[1] << 8 | (uint32_t)rgb[2] << 16;
}

/* The inputs of one output on one axis; inputs beyond the region are the region's last. */
typedef struct {
  int start, count, taps;
  const int16_t *weights;
  size_t stride;
} device_taps;

IOF_BOTH device_taps taps_of(const iof_device_batch *b, int image, int stored, int output) {
  size_t axis = 2 * (size_t)image + (size_t)stored, room = (size_t)b->room;
  device_taps t;
  t.start = b->starts[axis * room + (size_t)output];
  t.count = b->counts[axis * room + (size_t)output];
  t.taps = b->taps[axis];
  t.weights = b->weights + axis * IOF_DEVICE_TAPS * room + output;
  t.stride = room;
  return t;
}

IOF_BOTH int weight_of(const device_taps *t, int k) { return t->weights[(size_t)k * t->stride]; }

/* resample_short.c: across, then down. */
IOF_BOTH void resample_short(const uint32_t *pixels, const iof_device_image *m, const device_taps *x, const device_taps *y,
                             uint8_t rgb[3]) {
  int width = m->right - m->left, sums[3] = {0, 0, 0};
  for (int j = 0; j < y->count; j++) {
    const uint32_t *row = pixels + (size_t)within(y->start + j - m->top, m->bottom - m->top - 1) * (size_t)width;
    int line[3] = {IOF_SHORT_BIAS(x->taps), IOF_SHORT_BIAS(x->taps), IOF_SHORT_BIAS(x->taps)}, weight = weight_of(y, j);
    for (int k = 0; k < x->taps; k += 2) {
      uint32_t a = row[within(x->start + k - m->left, width - 1)], c = row[within(x->start + k + 1 - m->left, width - 1)];
      int first = weight_of(x, k), second = weight_of(x, k + 1);
      IOF_UNROLL
      for (int i = 0; i < 3; i++)
        line[i] += short_pair((int)(a >> 8 * i & 255) - 128, (int)(c >> 8 * i & 255) - 128, first, second);
    }
    IOF_UNROLL
    for (int i = 0; i < 3; i++) sums[i] += short_tap((int16_t)line[i], weight);
  }
  IOF_UNROLL
  for (int i = 0; i < 3; i++) rgb[i] = (uint8_t)(sums[i] >> IOF_SHORT_FRACTION);
}

/* resample.c: down, then across. */
IOF_BOTH void resample_wide(const uint32_t *pixels, const iof_device_image *m, const device_taps *x, const device_taps *y,
                            uint8_t rgb[3]) {
  int width = m->right - m->left, sums[3] = {1 << 19, 1 << 19, 1 << 19};
  for (int k = 0; k < x->count; k++) {
    const uint32_t *column = pixels + within(x->start + k - m->left, width - 1);
    int line[3] = {1 << 7, 1 << 7, 1 << 7}, weight = weight_of(x, k);
    for (int j = 0; j < y->count; j++) {
      uint32_t a = column[(size_t)within(y->start + j - m->top, m->bottom - m->top - 1) * (size_t)width];
      IOF_UNROLL
      for (int i = 0; i < 3; i++) line[i] += (int)(a >> 8 * i & 255) * weight_of(y, j);
    }
    IOF_UNROLL
    for (int i = 0; i < 3; i++) sums[i] += within(line[i] >> 8, 255 << IOF_FRACTION) * weight;
  }
  IOF_UNROLL
  for (int i = 0; i < 3; i++) rgb[i] = clamp(sums[i] >> 20);
}

IOF_BOTH void given_at(const iof_device_batch *b, int number, int x, int y, uint8_t rgb[3]) {
  const uint8_t *from = b->given + number * b->given_row + y * b->given_y + x * b->given_x;
  for (int c = 0; c < 3; c++) rgb[c] = from[c * b->given_channel];
}

IOF_BOTH void stage_finish(const iof_device_batch *b, int image, int thread) {
  const iof_device_image *m = &b->images[image];
  int j = thread / b->width, i = thread - j * b->width, turned = m->exif >= 5 && m->exif <= 8;
  uint8_t rgb[3], *to = place_in_batch(b, image, i, j);
  if (m->refused) {
    if (!b->given) return;
    given_at(b, m->refused - 1, i, j, rgb);
  } else {
    device_taps x = taps_of(b, image, 0, turned ? j : i), y = taps_of(b, image, 1, turned ? i : j);
    if (b->status[image] & IOF_DEVICE_WIDE) resample_wide(b->pixels + m->pixels, m, &x, &y, rgb);
    else resample_short(b->pixels + m->pixels, m, &x, &y, rgb);
  }
  if (b->canvas)
    b->canvas[(size_t)image * (size_t)b->width * (size_t)b->height + (size_t)thread] = rgb[0] | (uint32_t)rgb[1] << 8 | (uint32_t)rgb[2] << 16;
  IOF_UNROLL
  for (int c = 0; c < 3 && !b->canvas; c++) put(b, to + c * b->channel_stride, (float)rgb[c] * b->work.scale[c] + b->work.bias[c]);
}

/* The stages, and how many threads each has for an image `m`. More are launched: whole groups, and as many for each
image as the one with the most work needs. */
#define IF_DECODED(threads) (m->refused ? 0 : (threads))
#define FOR_STAGES(DO)                                                \
  DO(see, IF_DECODED(2 * b->room))                                    \
  DO(weigh, IF_DECODED(2 * b->room))                                  \
  DO(entropy, IF_DECODED(m->segments))                                \
  DO(blocks, IF_DECODED(m->blocks))                                   \
  DO(colour, IF_DECODED((m->right - m->left) * (m->bottom - m->top))) \
  DO(finish, b->width * b->height)                                    \
  DO(store, b->width * b->height)

#define RUN(name, threads)                                                     \
  IOF_BOTH void run_##name(const iof_device_batch *b, int image, int thread) { \
    const iof_device_image *m = &b->images[image];                             \
    (void)m;                                                                   \
    if (thread < (threads)) stage_##name(b, image, thread);                    \
  }
FOR_STAGES(RUN)

#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 700
#define IN_PLACE __grid_constant__ /* the address of a parameter makes no copy; before Volta each thread has one */
#else
#define IN_PLACE
#endif
#define KERNEL(name, threads)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256) iof_##name(const IN_PLACE iof_device_batch batch) { \
    run_##name(&batch, (int)blockIdx.y, (int)(blockIdx.x * blockDim.x + threadIdx.x));                           \
  }
FOR_STAGES(KERNEL)
extern "C" __global__ void __launch_bounds__(512) iof_steps(const IN_PLACE iof_device_batch batch) {
  stage_steps(&batch, (int)blockIdx.y);
}
#else
static void run_steps(const iof_device_batch *b, int image, int thread) {
  if (thread == 0) stage_steps(b, image);
}

void iof_device_run(const iof_device_batch *b, int stage, int threads) {
#define NAMED(name, threads) run_##name,
  static void (*const stages[IOF_DEVICE_STAGES])(const iof_device_batch *, int, int) = {FOR_STAGES(NAMED) run_steps};
  uint64_t all = (uint64_t)b->count * (uint64_t)(threads < 0 ? 0 : threads), step = all % SCATTER ? SCATTER : 1;
  for (uint64_t i = 0; i < all; i++) {
    uint64_t turn = i * step % all;
    stages[stage](b, (int)(turn / (uint64_t)threads), (int)(turn % (uint64_t)threads));
  }
}
#endif
