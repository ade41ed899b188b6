/* The host's half of device.h: records of JPEGs, and the work that boxes need. */
#include "device.h"

#include <stdatomic.h>

#include "context.h"
#include "pixels.h"

#define MARGIN 1       /* pixels around those that the exact interval needs: doubles round */
#define MOST_MCUS 1024 /* of a segment: more would keep one thread busy while all others wait */
#define MOST_REDUCTION 7 /* so that an axis has at most IOF_DEVICE_TAPS taps */

static uint32_t aligned(uint32_t size) { return (size + 15) & ~15u; }

/* The number of a table, which is added if it is new; -1 if there is no room. Only one thread adds at a time, and those
that are there never change. */
static int number_of(iof_device_tables *tables, const iof_code_table *code, int ac) {
  int size = 16 + code->symbols, found = -1;
  for (int added = 0; added < 2 && found < 0; added++) {
    int count = atomic_load_explicit(&tables->count, memory_order_acquire);
    for (int i = 0; i < count && found < 0; i++)
      if (tables->ac[i] == ac && tables->codes[i].made == size && !memcmp(tables->codes[i].body, code->body, (size_t)size)) found = i;
    if (found >= 0 || added) break;
    while (atomic_flag_test_and_set_explicit(&tables->busy, memory_order_acquire)) {}
    if (count == atomic_load_explicit(&tables->count, memory_order_relaxed) && count < IOF_DEVICE_TABLES) {
      iof_codes_make(&tables->codes[count], code, ac);
      tables->ac[count] = ac;
      atomic_store_explicit(&tables->count, count + 1, memory_order_release);
    }
    atomic_flag_clear_explicit(&tables->busy, memory_order_release);
  }
  return found;
}

static iof_status describe(const iof_frame *f, iof_device_tables *tables, iof_device_file *file) {
  *file = (iof_device_file){.width = f->width,
                            .height = f->height,
                            .components = f->components,
                            .h = f->component[0].h,
                            .v = f->component[0].v,
                            .across = f->across,
                            .down = f->down,
                            .restart = f->restart};
  int known = 1;
  for (int c = 0; c < f->components; c++) {
    file->dc[c] = number_of(tables, &f->code[0][f->component[c].dc], 0);
    file->ac[c] = number_of(tables, &f->code[1][f->component[c].ac], 1);
    known = known && file->dc[c] >= 0 && file->ac[c] >= 0;
  }
  return known ? IOF_OK : IOF_UNSUPPORTED;
}

static iof_status put_record(const iof_frame *f, const iof_segments *s, uint8_t *to, uint64_t room, iof_device_file *file) {
  uint64_t places = (uint64_t)s->count + 1;
  uint32_t bytes = s->begin[s->count];
  file->segments = s->count;
  file->scan = aligned(384 + 4 * (uint32_t)places);
  if (file->scan + (uint64_t)bytes > room) return IOF_UNSUPPORTED;
  for (int c = 0; c < f->components; c++) memcpy(to + 128 * c, f->quant[f->component[c].quant], 128);
  memcpy(to + 384, s->begin, 4 * places);
  memcpy(to + file->scan, s->bytes, bytes);
  return IOF_OK;
}

static iof_status read_one(iof_context *context, const iof_source *source, int64_t i, const iof_device_arena *to,
                           iof_device_file *file) {
  const uint8_t *data = NULL;
  const iof_frame *f;
  const iof_segments *s;
  int exif = source->orientations[i], turned = iof_orientation_of(exif).turned, width = 0, height = 0;
  iof_status status = iof_is_raw(source, i) || to->places[i] % 16 ? IOF_UNSUPPORTED : iof_fetch_whole(context, source, i, &data);
  if (!status) status = iof_region_frame(context->region, data, (size_t)source->lengths[i], &width, &height);
  if (!status && ((uint64_t)width * (uint64_t)height > context->options.max_pixels ||
                  iof_is_changed(source, i, data, turned ? height : width, turned ? width : height)))
    status = IOF_UNSUPPORTED; /* the decoder will report the error */
  if (!status) status = iof_region_segments(context->region, &f, &s);
  if (!status && (f->restart < 1 || f->restart > MOST_MCUS)) status = IOF_UNSUPPORTED;
  if (!status) status = describe(f, to->tables, file);
  if (!status) status = put_record(f, s, to->bytes + to->places[i], (uint64_t)(to->places[i + 1] - to->places[i]), file);
  file->place = (uint64_t)to->places[i];
  iof_clock_lap(&context->counters, IOF_SCANNING);
  return status;
}

void iof_device_read(iof_context *context, const iof_source *source, const iof_device_arena *to, iof_device_file *files,
                     int32_t *status, int64_t start, int64_t stop) {
  for (int64_t i = start; i < stop; i++) {
    iof_clock_start(&context->counters);
    status[i] = (int32_t)read_one(context, source, i, to, &files[i]);
    if (status[i]) memset(&files[i], 0, sizeof files[i]);
  }
}

/* The segments that the region touches. */
static void place_segments(iof_device_image *m) {
  const iof_device_file *f = &m->file;
  int per_row = f->across / f->restart;
  if (f->across % f->restart == 0) {
    m->first = m->mcu_y0 * per_row + m->mcu_x0 / f->restart;
    m->in_row = iof_divided_up(m->mcu_x1, f->restart) - m->mcu_x0 / f->restart;
    m->step = per_row;
    m->segments = m->in_row * (m->mcu_y1 - m->mcu_y0);
  } else {
    int64_t last = (int64_t)(m->mcu_y1 - 1) * f->across + m->mcu_x1 - 1;
    m->first = (int32_t)(((int64_t)m->mcu_y0 * f->across + m->mcu_x0) / f->restart);
    m->in_row = m->segments = (int32_t)(last / f->restart) - m->first + 1;
    m->step = 0;
  }
}

/* The pixels [*low, *high) of an interval of `length` that `outputs` outputs need, from output `first` on, when it is
resampled bilinearly to `size`. Integers in units of half an output's step, as in `window_pixels` of work.py. */
static void seen(int64_t length, int64_t size, int64_t first, int64_t outputs, int *low, int *high) {
  int64_t reach = 2 * (length > size ? length : size), from = (2 * first + 1) * length - reach - size;
  int64_t upto = (2 * (first + outputs) - 1) * length + reach - size;
  int64_t least = from < 0 ? 0 : from / (2 * size) + 1, most = (upto + 2 * size - 1) / (2 * size);
  *low = (int)least;
  *high = (int)(most < length ? most : length);
}

static int within(int value, int high) { return value < 0 ? 0 : value > high ? high : value; }

/* Convert the upright interval [low, high) to one axis of the stored image, `size` long, with a margin. */
static void turn(int *low, int *high, int size, int mirror) {
  int from = *low;
  *low = within((mirror ? size - *high : from) - MARGIN, size);
  *high = within((mirror ? size - from : *high) + MARGIN, size);
}

/* The stored rectangle, with the margin, that a window of this size needs of an upright image. */
static iof_rect needed(const iof_box *box, iof_orientation o, int width, int height, int out_width, int out_height) {
  int x0, x1, y0, y1;
  seen(box->x1 - box->x0, box->virtual_w, box->x, out_width, &x0, &x1);
  seen(box->y1 - box->y0, box->virtual_h, box->y, out_height, &y0, &y1);
  x0 += box->x0, x1 += box->x0, y0 += box->y0, y1 += box->y0;
  turn(&x0, &x1, width, o.mirror_x);
  turn(&y0, &y1, height, o.mirror_y);
  return o.turned ? (iof_rect){y0, x0, y1, x1} : (iof_rect){x0, y0, x1, y1};
}

static int place_one(const iof_device_wish *wish, int64_t i, iof_device_image *m, iof_device_sizes *sizes) {
  const iof_device_file *f = &m->file;
  iof_orientation o = iof_orientation_of(m->exif);
  int width = o.turned ? f->height : f->width, height = o.turned ? f->width : f->height;
  iof_box box = wish->clip ? iof_moved_within(&wish->boxes[i], wish->width, wish->height) : wish->boxes[i];
  int own = wish->flips[i] >> 1, filter = own ? own - 1 : wish->filter;
  if (!f->width || (!f->restart && f->components) || (filter != IOF_BILINEAR && filter != IOF_ALIASED) || !iof_box_fits(&box, width, height, wish->width, wish->height))
    return 0;
  if (box.x1 - box.x0 > (int64_t)MOST_REDUCTION * box.virtual_w || box.y1 - box.y0 > (int64_t)MOST_REDUCTION * box.virtual_h) return 0;
  m->x0 = box.x0, m->y0 = box.y0, m->x1 = box.x1, m->y1 = box.y1;
  m->virtual_w = box.virtual_w, m->virtual_h = box.virtual_h, m->x = box.x, m->y = box.y;
  m->flip = wish->flips[i] & 1, m->aliased = filter == IOF_ALIASED;
  iof_rect rect = needed(&box, o, width, height, wish->width, wish->height);
  m->left = rect.x0, m->top = rect.y0, m->right = rect.x1, m->bottom = rect.y1;
  int64_t groups = 0;
  if (f->components) {
    iof_cover(&rect.x0, &rect.x1, f->h, f->across);
    iof_cover(&rect.y0, &rect.y1, f->v, f->down);
    m->mcu_x0 = rect.x0, m->mcu_y0 = rect.y0, m->mcu_x1 = rect.x1, m->mcu_y1 = rect.y1;
    place_segments(m);
  }
  for (int c = 0; c < f->components; c++) {
    m->fours[c] = iof_divided_up((rect.x1 - rect.x0) * (c ? 1 : f->h), 4);
    groups += (int64_t)m->fours[c] * (c ? 1 : f->v) * (rect.y1 - rect.y0);
  }
  int64_t pixels = (int64_t)(m->right - m->left) * (m->bottom - m->top);
  if (groups > INT32_MAX / 256 || pixels > INT32_MAX / 4) return 0;
  m->blocks = (int32_t)(4 * groups);
  m->coefs = sizes->coefs, m->samples = sizes->coefs, m->pixels = sizes->pixels; /* as many samples as coefficients */
  sizes->coefs += (uint64_t)groups * IOF_FOUR;
  sizes->pixels += ((uint64_t)pixels + 31) & ~(uint64_t)31;
  int32_t threads[] = {m->segments, m->blocks, (int32_t)pixels};
  for (int k = 0; k < 3; k++)
    if (threads[k] > sizes->threads[k]) sizes->threads[k] = threads[k];
  return 1;
}

void iof_device_place(const iof_device_wish *wish, const iof_device_file *files, iof_device_image *images, int64_t count,
                      iof_device_sizes *sizes) {
  *sizes = (iof_device_sizes){0};
  for (int64_t i = 0; i < count; i++) {
    images[i] = (iof_device_image){.file = files[i], .exif = wish->orientations[i]};
    images[i].refused = !place_one(wish, i, &images[i], sizes);
  }
}

int64_t iof_device_blurs(const iof_work *work, int64_t count, iof_device_blur *blurs, int64_t room, int32_t *blurred) {
  int64_t found = 0;
  for (int64_t i = 0; i < count * work->steps; i++) {
    const float *f = work->numbers + i * IOF_NUMBERS;
    blurred[i] = 0;
    if (work->codes[i] != IOF_BLUR || found == room) continue;
    iof_device_blur *own = &blurs[found];
    own->wide = iof_gaussian(f[0], whole_of(f[1], 0, IOF_MOST_TAPS / 2), own->across);
    own->high = iof_gaussian(f[2], whole_of(f[3], 0, IOF_MOST_TAPS / 2), own->down);
    blurred[i] = (int32_t)found++;
  }
  return found;
}
