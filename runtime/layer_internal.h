/* What layer_check.c offers to layer.c. */
#ifndef MOEPACK_RUNTIME_LAYER_INTERNAL_H
#define MOEPACK_RUNTIME_LAYER_INTERNAL_H

#include "layer.h"

/* mpk_layer_check without what only steps 1 to 6 need. */
moepack_status mpk_layer_check_finish(const mpk_layer_view *view, moepack_error *error);

/* mpk_layer_check of what steps 1 to 3 need. */
moepack_status mpk_layer_check_router(const mpk_layer_view *view, moepack_error *error);

static inline bool mpk_uses_bias(const moepack_policy *policy)
{
    return policy->select == MOEPACK_SELECT_BIASED || policy->weight_from == MOEPACK_WEIGHT_BIASED;
}

#endif
