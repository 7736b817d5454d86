/* Tails of shards and plan ids, made from encoded tables: those of a builder or of an opened index. Internal. */
#ifndef MOEPACK_FORMAT_TAIL_H
#define MOEPACK_FORMAT_TAIL_H

#include "tableset.h"

/* Numbers of entries by table id, MPK_T_END of them. Without data: no records, sections and parts, which a plan id does
 * not cover and a trunk's tail counts by itself. */
void mpk_tables_count(const mpk_tables *tables, bool data, uint64_t *counts);
/* plan_id (spec 5.6). */
moepack_status mpk_view_plan_id(const mpk_tables_view *view, moepack_hash128 *out, moepack_error *error);
/* Tail of a shard of either kind, appended to out. */
moepack_status mpk_view_tail(const mpk_tables_view *view, uint32_t shard, mpk_buf *out, moepack_error *error);

#endif
