/* Codecs: how the bytes of a section are compressed. A new one is a new row here and in spec/container.md 4.3. */
#include "codec.h"

#include "error.h"

#include <string.h>

static moepack_status decode_raw(const void *src, size_t src_size, void *dst, size_t dst_size, moepack_error *error)
{
    if (src_size != dst_size) {
        return mpk_fail(error, MOEPACK_E_CORRUPT, "raw section of %zu stored bytes should have %zu", src_size,
                        dst_size);
    }
    if (dst_size > 0) memcpy(dst, src, dst_size);
    return MOEPACK_OK;
}

static const struct codec {
    const char *name;
    moepack_status (*decode)(const void *src, size_t src_size, void *dst, size_t dst_size, moepack_error *error);
} codecs[] = {
    [MOEPACK_CODEC_RAW] = {"raw", decode_raw},
};

#define CODEC_COUNT (sizeof codecs / sizeof codecs[0])

const char *mpk_codec_name(unsigned codec)
{
    return codec < CODEC_COUNT ? codecs[codec].name : NULL;
}

moepack_status mpk_codec_decode(unsigned codec, const void *src, size_t src_size, void *dst, size_t dst_size,
                                moepack_error *error)
{
    if (codec >= CODEC_COUNT)
        return mpk_fail(error, MOEPACK_E_UNSUPPORTED, "codec %u is not known to this version", codec);
    return codecs[codec].decode(src, src_size, dst, dst_size, error);
}
