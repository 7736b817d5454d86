/* The texts of --layers and --experts. Internal.
 *
 * LIST = ITEM {"," ITEM}; ITEM = [STACK "."] NUMBER ["-" NUMBER]; STACK = encoder | decoder | mtp (layers only). A
 * number alone means the main stack. A range may pass over layers that are no MoE blocks; a single number may not name
 * one. */
#ifndef MOEPACK_CONVERT_SELECTION_H
#define MOEPACK_CONVERT_SELECTION_H

#include "moepack/format.h"

typedef struct mpk_selection_block {
    moepack_stack stack;
    uint32_t number;
} mpk_selection_block;

/* Sets selected[i] to 1 for the blocks named and to 0 for the others; NULL text selects all. MOEPACK_E_USAGE names the
 * item that is malformed, beyond the model, or selects nothing. */
moepack_status mpk_select_layers(const char *text, const mpk_selection_block *blocks, size_t count, uint8_t *selected,
                                 moepack_error *error);

/* The same in the words of a container. `part`: it holds only a part of its model, so that a layer may be missing here.
 */
moepack_status mpk_select_layers_of_part(const char *text, const mpk_selection_block *blocks, size_t count, bool part,
                                         uint8_t *selected, moepack_error *error);

/* The same for experts 0 .. count - 1. */
moepack_status mpk_select_experts(const char *text, size_t count, uint8_t *selected, moepack_error *error);

/* "encoder" ...; "" for the main stack. */
const char *mpk_stack_name(moepack_stack stack);
/* "3", "encoder.1" into MOEPACK_LABEL_MAX bytes. */
void mpk_block_label(moepack_stack stack, uint32_t number, char *buf);

#endif
