/* Size, orientation and restart interval from the markers of a JPEG, without libjpeg and without allocation: the scan
of a folder with a million files reads them this way. */
#include "iofast.h"

#include <string.h>

static unsigned u16be(const uint8_t *p) { return (unsigned)p[0] << 8 | p[1]; }

typedef struct {
  const uint8_t *p;
  size_t n;
  int little;
} tiff;

static unsigned tiff_u16(const tiff *t, size_t at) {
  return t->little ? (unsigned)t->p[at + 1] << 8 | t->p[at] : u16be(t->p + at);
}

static size_t tiff_u32(const tiff *t, size_t at) {
  size_t first = tiff_u16(t, at), second = tiff_u16(t, at + 2);
  return t->little ? second << 16 | first : first << 16 | second;
}

static const char PACKET[] = "http://ns.adobe.com/xap/1.0/"; /* before XMP, with its NUL */

static int is_exif(const uint8_t *p, size_t n) { return n >= 6 && memcmp(p, "Exif\0", 6) == 0; }

static int is_xmp(const uint8_t *p, size_t n) { return n >= sizeof PACKET && memcmp(p, PACKET, sizeof PACKET) == 0; }

/* Orientation (tag 0x0112) in the first directory of an Exif block: 0 if it is not a whole number, -1 if there is no
entry. */
static int64_t exif_orientation(const uint8_t *p, size_t n) {
  int64_t orientation = -1;
  while (is_exif(p, n)) p += 6, n -= 6; /* some programs write it twice */
  if (n >= 8 && (memcmp(p, "II*", 4) == 0 || memcmp(p, "MM\0*", 4) == 0)) {
    tiff t = {p, n, p[0] == 'I'};
    size_t at = tiff_u32(&t, 4);
    size_t entries = at <= t.n - 2 ? tiff_u16(&t, at) : 0;
    for (size_t i = 0; i < entries && at + 2 + 12 * i + 8 <= t.n; i++) {
      size_t entry = at + 2 + 12 * i;
      unsigned kind = tiff_u16(&t, entry + 2); /* 3 = a short, 4 = a long number; other kinds are not numbers */
      if (tiff_u16(&t, entry) != 0x0112) continue;
      orientation = kind == 3 || kind == 4 ? -1 : 0;
      if (!orientation) continue;
      if (entry + 8 + (kind == 4 ? 4 : 2) <= t.n)
        orientation = (int64_t)(kind == 4 ? tiff_u32(&t, entry + 8) : tiff_u16(&t, entry + 8));
      break;
    }
  }
  return orientation;
}

/* Orientation in an XMP packet, whose properties are attributes or elements; -1 if there is none. */
static int xmp_orientation(const uint8_t *p, size_t n) {
  static const char name[] = "tiff:Orientation";
  enum { BEFORE = 5 }; /* characters before the rare one that is searched for */
  int orientation = -1;
  for (size_t at = BEFORE; at < n && orientation < 0; at++) {
    const uint8_t *found = memchr(p + at, 'O', n - at);
    if (!found) break;
    at = (size_t)(found - p);
    size_t value = at - BEFORE + sizeof name - 1;
    if (value + 2 > n || memcmp(found - BEFORE, name, sizeof name - 1) != 0) continue;
    value += p[value] == '>' ? 1 : p[value] == '=' && p[value + 1] == '"' ? 2 : n;
    if (value < n && p[value] >= '0' && p[value] <= '9') orientation = p[value] - '0';
  }
  return orientation;
}

static int is_start_of_frame(unsigned marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

/* MCUs per row: their width follows the largest sampling factor; in an image of one component they are single
blocks. */
static int mcus_per_row(const uint8_t *p, size_t n, int width, int components) {
  unsigned widest = 1;
  for (int i = 0; i < components; i++) {
    unsigned across = n >= 6 + 3 * (size_t)(i + 1) ? (unsigned)p[7 + 3 * i] >> 4 : 0;
    if (across < 1 || across > 4) return 0;
    if (across > widest && components > 1) widest = across;
  }
  return (width + 8 * (int)widest - 1) / (8 * (int)widest);
}

static iof_status read_frame(const uint8_t *p, size_t n, unsigned marker, iof_header *header) {
  if (n < 6) return IOF_CORRUPT;
  header->height = (int)u16be(p + 1);
  header->width = (int)u16be(p + 3);
  header->components = p[5];
  header->progressive = marker == 0xC2 || marker == 0xC6 || marker == 0xCA || marker == 0xCE;
  header->mcus = mcus_per_row(p, n, header->width, header->components);
  /* height 0 means that a DNL marker follows the scan: valid, but no decoder supports it */
  return header->width && header->height ? IOF_OK : IOF_UNSUPPORTED;
}

iof_status iof_read_header(const uint8_t *data, size_t length, iof_header *header) {
  size_t at = 2;
  iof_status status = IOF_TRUNCATED, frame = IOF_CORRUPT; /* if a scan comes before any frame */
  int exif_seen = 0;
  int64_t orientation = -1; /* Exif's; without it XMP's, as in Pillow */
  const uint8_t *xmp = NULL;
  size_t xmp_size = 0;
  *header = (iof_header){.orientation = 1};
  if (length < 3 || data[0] != 0xFF || data[1] != 0xD8 || data[2] != 0xFF) return IOF_UNSUPPORTED;
  while (status == IOF_TRUNCATED && at + 4 <= length) {
    unsigned marker = data[at + 1];
    size_t size = u16be(data + at + 2);
    const uint8_t *body = data + at + 4;
    if (data[at] != 0xFF || marker == 0xFF) { /* garbage between segments, which libjpeg skips too, or a fill byte */
      at++;
    } else if (marker == 0 || marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7)) {
      at += 2;
    } else if (marker == 0xD9 || marker == 0xDA) {
      status = frame; /* the first scan: everything needed comes before it */
    } else if (size < 2) {
      status = IOF_CORRUPT;
    } else if (at + 2 + size > length) {
      break;
    } else {
      if (is_start_of_frame(marker)) frame = read_frame(body, size - 2, marker, header);
      if (marker == 0xDD && size >= 4) header->restart = (int)u16be(body);
      if (marker == 0xE1 && !exif_seen && is_exif(body, size - 2)) {
        orientation = exif_orientation(body, size - 2);
        exif_seen = 1;
      } else if (marker == 0xE1 && is_xmp(body, size - 2)) {
        xmp = body + sizeof PACKET;
        xmp_size = size - 2 - sizeof PACKET;
      }
      at += 2 + size;
    }
  }
  if (orientation < 0 && xmp) orientation = xmp_orientation(xmp, xmp_size);
  if (orientation >= 1 && orientation <= 8) header->orientation = (int)orientation;
  if (header->orientation >= 5) { /* stored on its side */
    int width = header->width;
    header->width = header->height;
    header->height = width;
  }
  return status;
}
