/* Element types of tensors. One table, in the order of their numbers (spec/container.md 4.3). */
#include "moepack/format.h"

#include <string.h>

static const struct dtype_entry {
    const char *name;
    unsigned bits;
} dtypes[MOEPACK_DTYPE_COUNT] = {
    [MOEPACK_DTYPE_BOOL] = {"BOOL", 8},
    [MOEPACK_DTYPE_U8] = {"U8", 8},
    [MOEPACK_DTYPE_I8] = {"I8", 8},
    [MOEPACK_DTYPE_I16] = {"I16", 16},
    [MOEPACK_DTYPE_U16] = {"U16", 16},
    [MOEPACK_DTYPE_F16] = {"F16", 16},
    [MOEPACK_DTYPE_BF16] = {"BF16", 16},
    [MOEPACK_DTYPE_I32] = {"I32", 32},
    [MOEPACK_DTYPE_U32] = {"U32", 32},
    [MOEPACK_DTYPE_F32] = {"F32", 32},
    [MOEPACK_DTYPE_F64] = {"F64", 64},
    [MOEPACK_DTYPE_I64] = {"I64", 64},
    [MOEPACK_DTYPE_U64] = {"U64", 64},
    [MOEPACK_DTYPE_C64] = {"C64", 64},
    [MOEPACK_DTYPE_F8_E4M3] = {"F8_E4M3", 8},
    [MOEPACK_DTYPE_F8_E5M2] = {"F8_E5M2", 8},
    [MOEPACK_DTYPE_F8_E8M0] = {"F8_E8M0", 8},
    [MOEPACK_DTYPE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [MOEPACK_DTYPE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [MOEPACK_DTYPE_F6_E2M3] = {"F6_E2M3", 6},
    [MOEPACK_DTYPE_F6_E3M2] = {"F6_E3M2", 6},
    [MOEPACK_DTYPE_F4] = {"F4", 4},
};

const char *moepack_dtype_name(moepack_dtype dtype)
{
    return (unsigned)dtype < MOEPACK_DTYPE_COUNT ? dtypes[dtype].name : NULL;
}

unsigned moepack_dtype_bits(moepack_dtype dtype)
{
    return (unsigned)dtype < MOEPACK_DTYPE_COUNT ? dtypes[dtype].bits : 0;
}

moepack_dtype moepack_dtype_parse(const char *name)
{
    if (name == NULL) return MOEPACK_DTYPE_INVALID;
    for (unsigned i = 1; i < MOEPACK_DTYPE_COUNT; ++i) {
        if (strcmp(dtypes[i].name, name) == 0) return (moepack_dtype)i;
    }
    return MOEPACK_DTYPE_INVALID;
}
