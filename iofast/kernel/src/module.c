/* The Python binding: it takes buffers, releases the GIL and returns numbers. It has no pixel code. The Python side is
native.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "device.h"

#define CAPSULE "iofast.kernel.Context"

/* A context, and whether a call is using it: two threads must not share scratch memory. */
typedef struct {
  iof_context *context;
  atomic_flag busy;
} handle;

static void free_handle(PyObject *capsule) {
  handle *h = PyCapsule_GetPointer(capsule, CAPSULE);
  if (h) {
    iof_context_free(h->context);
    free(h);
  }
}

/* Returns NULL with an exception set if `capsule` is no context or another thread is using it. */
static handle *enter(PyObject *capsule) {
  handle *h = PyCapsule_GetPointer(capsule, CAPSULE);
  if (h && atomic_flag_test_and_set(&h->busy)) {
    PyErr_SetString(PyExc_RuntimeError, "kernel context is in use by another thread; make one context per thread");
    h = NULL;
  }
  return h;
}

static void leave(handle *h) { atomic_flag_clear(&h->busy); }

PyDoc_STRVAR(new_context_doc, "new_context(filter, exact, pillow, fast, strict, clip, max_pixels, max_bytes, way) -> capsule");

static PyObject *new_context(PyObject *self, PyObject *args) {
  iof_options options;
  unsigned long long max_pixels, max_bytes;
  PyObject *capsule = NULL;
  (void)self;
  if (!PyArg_ParseTuple(args, "iiiiiiKKi", &options.filter, &options.exact, &options.pillow, &options.fast, &options.strict,
                        &options.clip, &max_pixels, &max_bytes, &options.way))
    return NULL;
  if (options.filter < 0 || options.filter >= IOF_FILTERS) {
    PyErr_Format(PyExc_ValueError, "filter must be 0 to %d, found %d", IOF_FILTERS - 1, options.filter);
    return NULL;
  }
  if (options.way < -1 || options.way >= IOF_WAYS) {
    PyErr_Format(PyExc_ValueError, "way must be -1 to %d, found %d", IOF_WAYS - 1, options.way);
    return NULL;
  }
  options.max_pixels = max_pixels;
  options.max_bytes = max_bytes;
  handle *h = calloc(1, sizeof *h);
  if (h) h->context = iof_context_new(&options);
  if (h && h->context) {
    atomic_flag_clear(&h->busy);
    capsule = PyCapsule_New(h, CAPSULE, free_handle);
  }
  if (!capsule) {
    if (h) iof_context_free(h->context);
    free(h);
    if (!PyErr_Occurred()) PyErr_NoMemory();
  }
  return capsule;
}

/* The requirements of an array argument. */
typedef struct {
  const char *name;
  Py_ssize_t row_bytes; /* 0: checked elsewhere */
  int flags, optional;
} array;

/* The arrays of a source, with which the list of every call begins, in the order of its arguments. After them those of
decode_batch. */
enum { FDS, OFFSETS, LENGTHS, CRCS, ORIENTATIONS, INDEXED, SOURCE, BOXES = SOURCE, SPANS, FLIPS, OUT, STATUS, ARRAYS };

static const array OF_SOURCE[SOURCE] = {
    [FDS] = {"fds", sizeof(int32_t), PyBUF_SIMPLE, 0},
    [OFFSETS] = {"offsets", sizeof(uint64_t), PyBUF_SIMPLE, 0},
    [LENGTHS] = {"lengths", sizeof(uint64_t), PyBUF_SIMPLE, 0},
    [CRCS] = {"crcs", sizeof(uint32_t), PyBUF_SIMPLE, 1},
    [ORIENTATIONS] = {"orientations", sizeof(uint8_t), PyBUF_SIMPLE, 0},
    [INDEXED] = {"indexed", sizeof(iof_raw), PyBUF_SIMPLE, 1},
};

static const array OF_DECODE[ARRAYS - SOURCE] = {
    [BOXES - SOURCE] = {"boxes", sizeof(iof_box), PyBUF_SIMPLE, 0},
    [SPANS - SOURCE] = {"spans", 4 * sizeof(float), PyBUF_SIMPLE, 1},
    [FLIPS - SOURCE] = {"flips", sizeof(uint8_t), PyBUF_SIMPLE, 0},
    [OUT - SOURCE] = {"out", 0, PyBUF_STRIDED | PyBUF_WRITABLE, 0},
    [STATUS - SOURCE] = {"status", sizeof(int32_t), PyBUF_WRITABLE, 0},
};

/* Returns 0, or -1 with an exception set. Acquired buffers have a non-NULL `obj`. */
static int take_rows(const array *what, int count, PyObject **objects, Py_buffer *buffers, long long stop) {
  for (int i = 0; i < count; i++) {
    if (what[i].optional && objects[i] == Py_None) continue;
    if (PyObject_GetBuffer(objects[i], &buffers[i], what[i].flags)) return -1;
    if (what[i].row_bytes && buffers[i].len / what[i].row_bytes < stop) {
      PyErr_Format(PyExc_ValueError, "%s must have at least %lld rows of %zd bytes, found %zd bytes", what[i].name, stop,
                   what[i].row_bytes, buffers[i].len);
      return -1;
    }
  }
  return 0;
}

/* Take the arrays of the source, then those of `what`. */
static int take_call(const array *what, int count, PyObject **objects, Py_buffer *buffers, long long stop) {
  int failed = take_rows(OF_SOURCE, SOURCE, objects, buffers, stop);
  return failed ? failed : take_rows(what, count, objects + SOURCE, buffers + SOURCE, stop);
}

static void release(Py_buffer *buffers, int count) {
  for (int i = 0; i < count; i++)
    if (buffers[i].obj) PyBuffer_Release(&buffers[i]);
}

/* Check the images of a batch, of this type, and describe them. Returns 0, or -1 with an exception set. */
static int output_of(const char *name, const Py_buffer *b, int type, long long start, long long stop, iof_output *output) {
  if (type < 0 || type >= IOF_TYPES || b->ndim != 4 || b->itemsize != (Py_ssize_t)iof_size_of(type) || b->shape[3] != 3 ||
      b->shape[0] < stop || b->shape[1] > INT32_MAX || b->shape[2] > INT32_MAX || start < 0 || start > stop) {
    PyErr_Format(PyExc_ValueError, "%s must have the shape (rows, height, width, 3) and its type, with 0 <= start <= stop <= rows",
                 name);
    return -1;
  }
  *output = (iof_output){b->buf, b->strides[0], b->strides[1], b->strides[2], b->strides[3], (int32_t)b->shape[2],
                         (int32_t)b->shape[1], type};
  return 0;
}

/* The arrays of a batch's work; none if `given` is None. */
enum { CODES, NUMBERS, ERASED, FILLS, AMOUNTS, NOISE, SCALE, WORK };

typedef struct {
  Py_buffer buffers[WORK];
  iof_work work;
  const iof_work *wanted; /* NULL if there is none */
} taken_work;

/* Take an array of at least `rows` rows of `of` values of `size` bytes. Returns 0, or -1 with an exception set. */
static int take_array(const char *name, PyObject *object, Py_buffer *buffer, long long rows, long long of, size_t size) {
  if (PyObject_GetBuffer(object, buffer, PyBUF_SIMPLE)) return -1;
  if (buffer->len / (Py_ssize_t)size < rows * of) {
    PyErr_Format(PyExc_ValueError, "%s must have at least %lld values of %zu bytes, found %zd bytes", name, rows * of, size,
                 buffer->len);
    return -1;
  }
  return 0;
}

static int take_work(PyObject *given, int type, long long stop, taken_work *w) {
  PyObject *o[WORK];
  int steps, erasings;
  Py_buffer *b = w->buffers;
  if (given == Py_None && type == IOF_BYTES) return 0;
  if (!PyTuple_Check(given)) {
    PyErr_SetString(PyExc_TypeError, "work must be a tuple; it may be None where bytes are stored");
    return -1;
  }
  if (!PyArg_ParseTuple(given, "iiOOOOOOO", &steps, &erasings, &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6])) return -1;
  if (steps < 0 || steps > 255 || erasings < 0 || erasings > 255 || stop < 0 || stop > INT32_MAX) {
    PyErr_SetString(PyExc_ValueError, "work: steps and erasings must be 0 to 255");
    return -1;
  }
  if (take_array("codes", o[CODES], &b[CODES], stop, steps, 1) ||
      take_array("numbers", o[NUMBERS], &b[NUMBERS], stop, (long long)steps * IOF_NUMBERS, sizeof(float)) ||
      take_array("erased", o[ERASED], &b[ERASED], stop, 4LL * erasings, sizeof(int32_t)) ||
      take_array("fills", o[FILLS], &b[FILLS], stop, 3LL * erasings, sizeof(float)) ||
      take_array("amounts", o[AMOUNTS], &b[AMOUNTS], erasings, 3, sizeof(float)) ||
      take_array("noise", o[NOISE], &b[NOISE], stop, erasings, sizeof(int32_t)) ||
      take_array("scale", o[SCALE], &b[SCALE], 2, 3, sizeof(float)))
    return -1;
  const float *scale = b[SCALE].buf;
  w->work = (iof_work){b[CODES].buf, b[NUMBERS].buf, steps, erasings, b[ERASED].buf, b[FILLS].buf, b[AMOUNTS].buf,
                       b[NOISE].buf, {scale[0], scale[1], scale[2]}, {scale[3], scale[4], scale[5]}};
  w->wanted = &w->work;
  return 0;
}

PyDoc_STRVAR(decode_batch_doc,
             "decode_batch(context, fds, offsets, lengths, crcs, orientations, indexed, boxes, spans, flips, out, status, start,\n"
             "stop, work, type); work is None, or (steps, erasings, codes, numbers, erased, fills, amounts, noise, scale)");

static PyObject *decode_batch(PyObject *self, PyObject *args) {
  PyObject *capsule, *objects[ARRAYS], *given, *result = NULL;
  Py_buffer b[ARRAYS] = {{0}};
  taken_work work = {.wanted = NULL};
  iof_output out;
  long long start, stop;
  int type;
  handle *h = NULL;
  (void)self;
  if (!PyArg_ParseTuple(args, "OOOOOOOOOOOOLLOi", &capsule, &objects[0], &objects[1], &objects[2], &objects[3], &objects[4],
                        &objects[5], &objects[6], &objects[7], &objects[8], &objects[9], &objects[10], &start, &stop,
                        &given, &type))
    return NULL;
  if (!take_call(OF_DECODE, ARRAYS - SOURCE, objects, b, stop) && !output_of("out", &b[OUT], type, start, stop, &out) &&
      !take_work(given, type, stop, &work) && (h = enter(capsule))) {
    iof_source source = {b[FDS].buf, b[OFFSETS].buf, b[LENGTHS].buf, b[CRCS].buf, b[ORIENTATIONS].buf, b[INDEXED].buf};
    Py_BEGIN_ALLOW_THREADS
    iof_decode_batch(h->context, &source, b[BOXES].buf, b[SPANS].buf, b[FLIPS].buf, work.wanted, &out, b[STATUS].buf, start,
                     stop);
    Py_END_ALLOW_THREADS
    leave(h);
    result = Py_NewRef(Py_None);
  }
  release(b, ARRAYS);
  release(work.buffers, WORK);
  return result;
}

/* The arrays of a mix; none if `given` is None. */
enum { PARTNERS, SHARES, PATCHES, MIX };

static int take_mix(PyObject *given, long long start, long long stop, Py_buffer *b, iof_mix *mix) {
  PyObject *o[MIX];
  if (given == Py_None) return 0;
  if (!PyArg_ParseTuple(given, "OOO", &o[0], &o[1], &o[2])) return -1;
  if (take_array("partners", o[PARTNERS], &b[PARTNERS], stop, 1, sizeof(int64_t)) ||
      take_array("shares", o[SHARES], &b[SHARES], stop, 1, sizeof(float)) ||
      take_array("patches", o[PATCHES], &b[PATCHES], stop, 4, sizeof(int32_t)))
    return -1;
  *mix = (iof_mix){b[PARTNERS].buf, b[SHARES].buf, b[PATCHES].buf};
  for (long long i = start; i < stop; i++) {
    int64_t partner = mix->partners[i];
    if (partner < start || partner >= stop || partner < i - 1 || partner > i + 1 || mix->partners[partner] != i) {
      PyErr_Format(PyExc_ValueError, "partners must be neighbours within rows %lld to %lld, each the other's; found %lld of %lld",
                   start, stop, (long long)partner, i);
      return -1;
    }
  }
  return 0;
}

PyDoc_STRVAR(finish_batch_doc,
             "finish_batch(context, images, work, mix, out, type, start, stop); work as for decode_batch, mix None or\n"
             "(partners, shares, patches)");

static PyObject *finish_batch(PyObject *self, PyObject *args) {
  PyObject *capsule, *from, *given, *mixed, *to, *result = NULL;
  Py_buffer images = {0}, result_buffer = {0}, mix_buffers[MIX] = {{0}};
  taken_work work = {.wanted = NULL};
  iof_output in, out;
  iof_mix mix;
  long long start, stop;
  int type;
  handle *h = NULL;
  (void)self;
  if (!PyArg_ParseTuple(args, "OOO!OOiLL", &capsule, &from, &PyTuple_Type, &given, &mixed, &to, &type, &start, &stop))
    return NULL;
  if (!PyObject_GetBuffer(from, &images, PyBUF_STRIDED) && !PyObject_GetBuffer(to, &result_buffer, PyBUF_STRIDED | PyBUF_WRITABLE) &&
      !output_of("images", &images, IOF_BYTES, start, stop, &in) && !output_of("out", &result_buffer, type, start, stop, &out) &&
      !take_work(given, type, stop, &work) && !take_mix(mixed, start, stop, mix_buffers, &mix)) {
    if (in.width != out.width || in.height != out.height) {
      PyErr_SetString(PyExc_ValueError, "images and out must be of one size");
    } else if ((h = enter(capsule))) {
      iof_status status;
      Py_BEGIN_ALLOW_THREADS
      status = iof_finish_batch(h->context, &in, work.wanted, mixed == Py_None ? NULL : &mix, &out, start, stop);
      Py_END_ALLOW_THREADS
      leave(h);
      result = status ? PyErr_NoMemory() : Py_NewRef(Py_None);
    }
  }
  release(&images, 1);
  release(&result_buffer, 1);
  release(mix_buffers, MIX);
  release(work.buffers, WORK);
  return result;
}

PyDoc_STRVAR(levels_doc, "levels(pixels, table, out): (height, width, 3) bytes to (3, height, width) floats; table (3, 256)");

static PyObject *levels(PyObject *self, PyObject *args) {
  PyObject *objects[3], *result = NULL;
  Py_buffer b[3] = {{0}};
  (void)self;
  if (!PyArg_ParseTuple(args, "OOO", &objects[0], &objects[1], &objects[2])) return NULL;
  if (!PyObject_GetBuffer(objects[0], &b[0], PyBUF_SIMPLE) && !PyObject_GetBuffer(objects[1], &b[1], PyBUF_SIMPLE) &&
      !PyObject_GetBuffer(objects[2], &b[2], PyBUF_WRITABLE)) {
    if (b[0].len % 3 || b[1].len != (Py_ssize_t)(768 * sizeof(float)) || b[2].len != b[0].len * (Py_ssize_t)sizeof(float)) {
      PyErr_SetString(PyExc_ValueError, "levels: table must have 3 x 256 floats and out a float for each byte of whole pixels");
    } else {
      Py_BEGIN_ALLOW_THREADS
      iof_levels(b[0].buf, b[0].len / 3, b[1].buf, b[2].buf);
      Py_END_ALLOW_THREADS
      result = Py_NewRef(Py_None);
    }
  }
  release(b, 3);
  return result;
}

/* Whether places [start, stop] rise and lie within `room` bytes. */
static int places_fit(const Py_buffer *places, long long start, long long stop, Py_ssize_t room) {
  const int64_t *at = places->buf;
  int fit = start >= 0 && start <= stop && places->len / (Py_ssize_t)sizeof *at > stop && at[start] >= 0 && at[stop] <= room;
  for (long long i = start; i < stop && fit; i++) fit = at[i] <= at[i + 1];
  if (!fit) PyErr_SetString(PyExc_ValueError, "places must be stop + 1 rising offsets within out, and 0 <= start <= stop");
  return fit;
}

enum { ARENA = SOURCE, AT, TABLES, FILES, READ_STATUS, READ_ARRAYS };

static const array OF_READ[READ_ARRAYS - SOURCE] = {
    [ARENA - SOURCE] = {"arena", 0, PyBUF_WRITABLE, 0},
    [AT - SOURCE] = {"places", sizeof(int64_t), PyBUF_SIMPLE, 0},
    [TABLES - SOURCE] = {"tables", 0, PyBUF_WRITABLE, 0},
    [FILES - SOURCE] = {"files", sizeof(iof_device_file), PyBUF_WRITABLE, 0},
    [READ_STATUS - SOURCE] = {"status", sizeof(int32_t), PyBUF_WRITABLE, 0},
};

PyDoc_STRVAR(device_read_doc,
             "device_read(context, fds, offsets, lengths, crcs, orientations, indexed, arena, places, tables, files, status,\n"
             "start, stop)");

static PyObject *device_read(PyObject *self, PyObject *args) {
  PyObject *capsule, *o[READ_ARRAYS], *result = NULL;
  Py_buffer b[READ_ARRAYS] = {{0}};
  long long start, stop;
  handle *h = NULL;
  (void)self;
  if (!PyArg_ParseTuple(args, "OOOOOOOOOOOOLL", &capsule, &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6], &o[7], &o[8], &o[9],
                        &o[10], &start, &stop))
    return NULL;
  if (!take_call(OF_READ, READ_ARRAYS - SOURCE, o, b, stop) && places_fit(&b[AT], start, stop, b[ARENA].len)) {
    if ((size_t)b[TABLES].len != sizeof(iof_device_tables) || (uintptr_t)b[TABLES].buf % 16) {
      PyErr_Format(PyExc_ValueError, "tables must have %zu bytes", sizeof(iof_device_tables));
    } else if ((h = enter(capsule))) {
      iof_source source = {b[FDS].buf, b[OFFSETS].buf, b[LENGTHS].buf, b[CRCS].buf, b[ORIENTATIONS].buf, b[INDEXED].buf};
      iof_device_arena arena = {b[ARENA].buf, b[AT].buf, b[TABLES].buf};
      Py_BEGIN_ALLOW_THREADS
      iof_device_read(h->context, &source, &arena, b[FILES].buf, b[READ_STATUS].buf, start, stop);
      Py_END_ALLOW_THREADS
      leave(h);
      result = Py_NewRef(Py_None);
    }
  }
  release(b, READ_ARRAYS);
  return result;
}

PyDoc_STRVAR(device_place_doc,
             "device_place(files, boxes, flips, orientations, images, filter, clip, width, height)\n"
             "-> (coefficients, pixels, most segments, most blocks, most pixels)");

static PyObject *device_place(PyObject *self, PyObject *args) {
  Py_buffer files, boxes, flips, orientations, images;
  iof_device_wish wish;
  iof_device_sizes sizes;
  PyObject *result = NULL;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*y*y*y*w*iiii", &files, &boxes, &flips, &orientations, &images, &wish.filter, &wish.clip,
                        &wish.width, &wish.height))
    return NULL;
  Py_ssize_t count = flips.len;
  if (files.len / (Py_ssize_t)sizeof(iof_device_file) < count || boxes.len / (Py_ssize_t)sizeof(iof_box) < count ||
      orientations.len < count || images.len / (Py_ssize_t)sizeof(iof_device_image) < count) {
    PyErr_SetString(PyExc_ValueError, "device_place: a row of each array for each flip");
  } else {
    wish.boxes = boxes.buf, wish.flips = flips.buf, wish.orientations = orientations.buf;
    Py_BEGIN_ALLOW_THREADS
    iof_device_place(&wish, files.buf, images.buf, count, &sizes);
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("(KKiii)", (unsigned long long)sizes.coefs, (unsigned long long)sizes.pixels, sizes.threads[0],
                           sizes.threads[1], sizes.threads[2]);
  }
  Py_buffer *all[] = {&files, &boxes, &flips, &orientations, &images};
  for (int i = 0; i < 5; i++) PyBuffer_Release(all[i]);
  return result;
}

PyDoc_STRVAR(device_blurs_doc, "device_blurs(codes, numbers, blurs, blurred) -> number of blurs among the steps");

static PyObject *device_blurs(PyObject *self, PyObject *args) {
  Py_buffer b[4];
  PyObject *result = NULL;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*y*w*w*", &b[0], &b[1], &b[2], &b[3])) return NULL;
  iof_work work = {.codes = b[0].buf, .numbers = b[1].buf, .steps = 1};
  Py_ssize_t count = b[0].len;
  if (b[1].len / (Py_ssize_t)(IOF_NUMBERS * sizeof(float)) < count || b[3].len / (Py_ssize_t)sizeof(int32_t) < count)
    PyErr_SetString(PyExc_ValueError, "device_blurs: numbers and a place for each step");
  else
    result = PyLong_FromLongLong(iof_device_blurs(&work, count, b[2].buf, b[2].len / (Py_ssize_t)sizeof(iof_device_blur), b[3].buf));
  for (int i = 0; i < 4; i++) PyBuffer_Release(&b[i]);
  return result;
}

PyDoc_STRVAR(device_run_doc,
             "device_run(batch, stage, threads): a stage of device.c on the host, where each of the threads for an image is a\n"
             "turn of a loop; the addresses in `batch` must be valid. device_sizes() -> bytes of a file, an image, a batch, all\n"
             "tables and a blur");

static PyObject *device_run(PyObject *self, PyObject *args) {
  Py_buffer batch;
  int stage, threads;
  PyObject *result = NULL;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*ii", &batch, &stage, &threads)) return NULL;
  if ((size_t)batch.len != sizeof(iof_device_batch) || stage < 0 || stage >= IOF_DEVICE_STAGES) {
    PyErr_Format(PyExc_ValueError, "device_run: a batch of %zu bytes and a stage", sizeof(iof_device_batch));
  } else {
    Py_BEGIN_ALLOW_THREADS
    iof_device_run(batch.buf, stage, threads);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
  }
  PyBuffer_Release(&batch);
  return result;
}

static PyObject *device_sizes(PyObject *self, PyObject *unused) {
  (void)self;
  (void)unused;
  return Py_BuildValue("(nnnnn)", (Py_ssize_t)sizeof(iof_device_file), (Py_ssize_t)sizeof(iof_device_image),
                       (Py_ssize_t)sizeof(iof_device_batch), (Py_ssize_t)sizeof(iof_device_tables),
                       (Py_ssize_t)sizeof(iof_device_blur));
}

PyDoc_STRVAR(counters_doc,
             "counters(context, timed) -> (images by way, nanoseconds by stage) so far; from now on timed: 2 = every "
             "stage, 1 = only reading, 0 = nothing; -1 = no change");

static PyObject *tuple_of(const uint64_t *values, Py_ssize_t n) {
  PyObject *tuple = PyTuple_New(n);
  for (Py_ssize_t i = 0; i < n && tuple; i++) {
    PyObject *value = PyLong_FromUnsignedLongLong(__atomic_load_n(&values[i], __ATOMIC_RELAXED));
    if (!value || PyTuple_SetItem(tuple, i, value)) { /* steals the value, also on failure */
      Py_DECREF(tuple);
      tuple = NULL;
    }
  }
  return tuple;
}

/* Reading needs no `enter`: the numbers only grow, each by one store, so a decoding thread is not disturbed. */
static PyObject *counters(PyObject *self, PyObject *args) {
  PyObject *capsule, *images = NULL, *stages = NULL, *result = NULL;
  int timed;
  (void)self;
  if (!PyArg_ParseTuple(args, "Oi", &capsule, &timed)) return NULL;
  handle *h = timed < 0 ? PyCapsule_GetPointer(capsule, CAPSULE) : enter(capsule);
  if (h) {
    iof_counters *c = iof_context_counters(h->context);
    if (timed >= 0) {
      c->timed = timed;
      leave(h);
    }
    images = tuple_of(c->images, IOF_WAYS);
    stages = tuple_of(c->nanoseconds, IOF_STAGES);
    if (images && stages) result = PyTuple_Pack(2, images, stages);
  }
  Py_XDECREF(images);
  Py_XDECREF(stages);
  return result;
}

/* Returns (status, bytes), or (status, None) after a failure. */
static PyObject *status_and_bytes(iof_status status, const uint8_t *bytes, size_t length) {
  if (status) return Py_BuildValue("(iO)", (int)status, Py_None);
  return Py_BuildValue("(iy#)", (int)status, bytes, (Py_ssize_t)length);
}

/* Whether the encoder supports a recipe; otherwise sets ValueError. */
static int check_recipe(const iof_recipe *r) {
  int fits = r->width >= 1 && r->height >= 1 && r->width <= 65500 && r->height <= 65500 && r->restart >= 0 &&
             r->restart <= 65535 && r->h_samp >= 1 && r->h_samp <= 4 && r->v_samp >= 1 && r->v_samp <= 4 &&
             r->kind >= IOF_ENCODED && r->kind <= IOF_RGB;
  if (!fits) PyErr_SetString(PyExc_ValueError, "width and height 1-65500, restart 0-65535, samples 1-4, kind 0-1");
  return fits;
}

PyDoc_STRVAR(transcode_doc,
             "transcode(context, data, box, width, height, orientation, quality, h_samp, v_samp, restart, denominator, kind)\n"
             "-> (status, bytes or None); box is the eight numbers of a row of `boxes`");

static PyObject *transcode(PyObject *self, PyObject *args) {
  PyObject *capsule, *result = NULL;
  Py_buffer data;
  iof_recipe r;
  handle *h;
  (void)self;
  if (!PyArg_ParseTuple(args, "Oy*(iiiiiiii)iiiiiiiii", &capsule, &data, &r.box.x0, &r.box.y0, &r.box.x1, &r.box.y1,
                        &r.box.virtual_w, &r.box.virtual_h, &r.box.x, &r.box.y, &r.width, &r.height, &r.orientation,
                        &r.quality, &r.h_samp, &r.v_samp, &r.restart, &r.denominator, &r.kind))
    return NULL;
  if (r.denominator != 1 && r.denominator != 2 && r.denominator != 4 && r.denominator != 8) {
    PyErr_SetString(PyExc_ValueError, "denominator 1, 2, 4 or 8");
  } else if (check_recipe(&r) && (h = enter(capsule))) {
    const uint8_t *encoded = NULL;
    size_t length = 0;
    iof_status status;
    Py_BEGIN_ALLOW_THREADS
    status = iof_transcode(h->context, data.buf, (size_t)data.len, &r, &encoded, &length);
    Py_END_ALLOW_THREADS
    result = status_and_bytes(status, encoded, length);
    leave(h);
  }
  PyBuffer_Release(&data);
  return result;
}

PyDoc_STRVAR(encode_doc,
             "encode(context, pixels, channels, width, height, quality, h_samp, v_samp, restart)\n"
             "-> (status, bytes or None), a JPEG; pixels are rows of `channels` bytes each: 3 = RGB, 1 = gray");

static PyObject *encode(PyObject *self, PyObject *args) {
  PyObject *capsule, *result = NULL;
  Py_buffer pixels;
  iof_recipe r = {0};
  int channels;
  handle *h;
  (void)self;
  if (!PyArg_ParseTuple(args, "Oy*iiiiiii", &capsule, &pixels, &channels, &r.width, &r.height, &r.quality, &r.h_samp,
                        &r.v_samp, &r.restart))
    return NULL;
  int fits = check_recipe(&r);
  if (fits && ((channels != 3 && channels != 1) ||
               pixels.len != (Py_ssize_t)channels * r.width * r.height)) {
    PyErr_SetString(PyExc_ValueError, "channels 1 or 3, and as many bytes as width, height and channels say");
  } else if (fits && (h = enter(capsule))) {
    const uint8_t *encoded = NULL;
    size_t length = 0;
    iof_status status;
    Py_BEGIN_ALLOW_THREADS
    status = iof_encode(h->context, pixels.buf, channels, &r, &encoded, &length);
    Py_END_ALLOW_THREADS
    result = status_and_bytes(status, encoded, length);
    leave(h);
  }
  PyBuffer_Release(&pixels);
  return result;
}

PyDoc_STRVAR(rewrite_doc, "rewrite(context, data, restart, tables, max_pixels) -> (status, bytes or None)");

static PyObject *rewrite(PyObject *self, PyObject *args) {
  PyObject *capsule, *result = NULL;
  Py_buffer data;
  iof_rewriting how;
  unsigned long long max_pixels;
  handle *h;
  (void)self;
  if (!PyArg_ParseTuple(args, "Oy*iiK", &capsule, &data, &how.restart, &how.tables, &max_pixels)) return NULL;
  how.max_pixels = max_pixels;
  if (how.restart < 0 || how.restart > 65535 || how.tables < IOF_STANDARD || how.tables > 100) {
    PyErr_SetString(PyExc_ValueError, "rewrite: restart 0-65535, tables -1 to 100");
  } else if ((h = enter(capsule))) {
    const uint8_t *encoded = NULL;
    size_t length = 0;
    iof_status status;
    Py_BEGIN_ALLOW_THREADS
    status = iof_rewrite(h->context, data.buf, (size_t)data.len, &how, &encoded, &length);
    Py_END_ALLOW_THREADS
    result = status_and_bytes(status, encoded, length);
    leave(h);
  }
  PyBuffer_Release(&data);
  return result;
}

PyDoc_STRVAR(read_header_doc,
             "read_header(data) -> (status, width, height, orientation, components, progressive, restart, mcus)");

static PyObject *read_header(PyObject *self, PyObject *args) {
  Py_buffer data;
  iof_header header;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*", &data)) return NULL;
  iof_status status = iof_read_header(data.buf, (size_t)data.len, &header);
  PyBuffer_Release(&data);
  return Py_BuildValue("(iiiiiiii)", (int)status, header.width, header.height, header.orientation, header.components,
                       header.progressive, header.restart, header.mcus);
}

PyDoc_STRVAR(read_rows_doc, "read_rows(fd, offsets, size, out) -> -1, or the row in which the file ends");

static PyObject *read_rows(PyObject *self, PyObject *args) {
  Py_buffer offsets, out;
  int fd, reason = 0;
  Py_ssize_t size;
  PyObject *result = NULL;
  (void)self;
  if (!PyArg_ParseTuple(args, "iy*nw*", &fd, &offsets, &size, &out)) return NULL;
  int64_t n = (int64_t)(offsets.len / (Py_ssize_t)sizeof(int64_t)), failed = -1;
  if (size < 1 || out.len / size < n) {
    PyErr_SetString(PyExc_ValueError, "read_rows: out must have room for the rows, of one byte or more");
  } else {
    iof_status status;
    Py_BEGIN_ALLOW_THREADS
    status = iof_read_rows(fd, offsets.buf, n, (size_t)size, out.buf, &failed);
    reason = errno;
    Py_END_ALLOW_THREADS
    errno = reason;
    result = status == IOF_READ ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLongLong(status ? failed : -1);
  }
  PyBuffer_Release(&offsets);
  PyBuffer_Release(&out);
  return result;
}

PyDoc_STRVAR(crc32c_doc, "crc32c(data, value=0) -> int");

static PyObject *crc32c(PyObject *self, PyObject *args) {
  Py_buffer data;
  unsigned int value = 0;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*|I", &data, &value)) return NULL;
  Py_BEGIN_ALLOW_THREADS
  value = iof_crc32c(value, data.buf, (size_t)data.len);
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&data);
  return PyLong_FromUnsignedLong(value);
}

PyDoc_STRVAR(find_libraries_doc, "find_libraries(path of libwebp or None) -> bits: 1 = PNG, 2 = WebP");

static PyObject *find_libraries(PyObject *self, PyObject *args) {
  const char *webp;
  (void)self;
  if (!PyArg_ParseTuple(args, "z", &webp)) return NULL;
  return PyLong_FromLong(iof_find_libraries(webp));
}

PyDoc_STRVAR(versions_doc, "versions() -> (instruction set, libjpeg-turbo version number)");

static PyObject *versions(PyObject *self, PyObject *unused) {
  (void)self;
  (void)unused;
  return Py_BuildValue("(si)", iof_simd(), iof_jpeg_version());
}

static PyMethodDef METHODS[] = {
    {"new_context", new_context, METH_VARARGS, new_context_doc},
    {"decode_batch", decode_batch, METH_VARARGS, decode_batch_doc},
    {"finish_batch", finish_batch, METH_VARARGS, finish_batch_doc},
    {"levels", levels, METH_VARARGS, levels_doc},
    {"device_read", device_read, METH_VARARGS, device_read_doc},
    {"device_place", device_place, METH_VARARGS, device_place_doc},
    {"device_blurs", device_blurs, METH_VARARGS, device_blurs_doc},
    {"device_run", device_run, METH_VARARGS, device_run_doc},
    {"device_sizes", device_sizes, METH_NOARGS, device_run_doc},
    {"counters", counters, METH_VARARGS, counters_doc},
    {"transcode", transcode, METH_VARARGS, transcode_doc},
    {"encode", encode, METH_VARARGS, encode_doc},
    {"rewrite", rewrite, METH_VARARGS, rewrite_doc},
    {"read_header", read_header, METH_VARARGS, read_header_doc},
    {"read_rows", read_rows, METH_VARARGS, read_rows_doc},
    {"crc32c", crc32c, METH_VARARGS, crc32c_doc},
    {"find_libraries", find_libraries, METH_VARARGS, find_libraries_doc},
    {"versions", versions, METH_NOARGS, versions_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = "_native", .m_size = 0, .m_methods = METHODS};

PyMODINIT_FUNC PyInit__native(void) {
  PyObject *module = PyModule_Create(&MODULE);
#ifdef Py_GIL_DISABLED  // nothing is shared but contexts, and two threads in one of them are refused (`enter`)
  if (module) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
  return module;
}
