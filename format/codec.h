/* Codecs as a table. Internal. */
#ifndef MOEPACK_FORMAT_CODEC_H
#define MOEPACK_FORMAT_CODEC_H

#include "moepack/format.h"

/* Name for listings; NULL for a codec this version does not know. */
const char *mpk_codec_name(unsigned codec);

/* Stored bytes of one section, or of one part of one, into exactly `dst_size` decoded bytes; never writes more.
 * UNSUPPORTED for an unknown codec, CORRUPT when the bytes decode to another length. */
moepack_status mpk_codec_decode(unsigned codec, const void *src, size_t src_size, void *dst, size_t dst_size,
                                moepack_error *error);

#endif
