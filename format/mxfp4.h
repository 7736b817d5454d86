/* Encoding of real weights as MXFP4: blocks of 32 columns, E2M1 codes, one E8M0 scale. Internal. Rule and measured
 * errors: spec/numerics.md, "MXFP4 from other weights". */
#ifndef MOEPACK_FORMAT_MXFP4_H
#define MOEPACK_FORMAT_MXFP4_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MPK_MXFP4_BLOCK 32

/* Encodes a block: 16 bytes of codes (even column in the low nibble) and its scale byte. False, with nothing written,
 * when a value is infinite or NaN. The same bits on every machine. */
bool mpk_mxfp4_encode(const float x[MPK_MXFP4_BLOCK], uint8_t codes[MPK_MXFP4_BLOCK / 2], uint8_t *scale);

/* Sum of squared differences of a block from its encoding, for reports and tests. */
double mpk_mxfp4_error(const float x[MPK_MXFP4_BLOCK], const uint8_t codes[MPK_MXFP4_BLOCK / 2], uint8_t scale);

#endif
