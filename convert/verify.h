/* The inside of verify. Internal. */
#ifndef MOEPACK_CONVERT_VERIFY_H
#define MOEPACK_CONVERT_VERIFY_H

#include "moepack/convert.h"

/* moepack_verify on a directory of any name: convert checks what it wrote before it gives it its name. */
moepack_status mpk_verify_dir(const char *dir, const moepack_verify_options *options, moepack_verify_report *report,
                              moepack_error *error);

#endif
