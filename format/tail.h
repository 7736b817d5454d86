/* Tails of shards and plan ids, made from encoded tables: those of a builder or of an opened index. Internal. */
#ifndef MOEPACK_FORMAT_TAIL_H
#define MOEPACK_FORMAT_TAIL_H

#include "tableset.h"

/* plan_id (spec 5.6). */
moepack_status mpk_view_plan_id(const mpk_tables_view *view, moepack_hash128 *out, moepack_error *error);
/* Tail of a shard of either kind, appended to out. */
moepack_status mpk_view_tail(const mpk_tables_view *view, uint32_t shard, mpk_buf *out, moepack_error *error);

#endif
