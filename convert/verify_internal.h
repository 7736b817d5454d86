/* Shared by verify's files: verify.c (entry, selection, order), verify_shard.c (headers, tails, padding),
 * verify_section.c (content), verify_tail.c (tails against the index), verify_source.c (the whole: file hashes,
 * canonical_root, plan_id, INFO), verify_order.c (storage order of the trunk). */
#ifndef MOEPACK_CONVERT_VERIFY_INTERNAL_H
#define MOEPACK_CONVERT_VERIFY_INTERNAL_H

#include "build.h"
#include "error.h"
#include "io/io.h"
#include "pieces.h"
#include "pipeline_jobs.h"
#include "progress.h"
#include "verify.h"

#define MPK_NO_PIECE SIZE_MAX

/* One section to check, and the padding behind it. */
typedef struct mpk_check {
    uint64_t offset, length; /* stored */
    uint64_t gap_end;        /* zero padding from the section's end up to here; 0: not checked */
    uint64_t section;
    size_t piece;  /* MPK_NO_PIECE: a source file's own section */
    uint32_t file; /* then: which */
    uint32_t shard;
    bool selected, bad;
} mpk_check;

/* Kinds of findings, the one that decides over the others first (moepack_verify in convert.h). */
enum {
    MPK_FOUND_CORRUPT,
    MPK_FOUND_MISSING,
    MPK_FOUND_UNREADABLE,
    MPK_FOUND_UNSUPPORTED,
    MPK_VERDICTS
};

/* The first finding of a kind, by place in the container: what the error of a run describes. */
typedef struct mpk_first {
    bool any;
    uint32_t shard;
    uint64_t offset;
    moepack_finding finding;
} mpk_first;

typedef struct mpk_verify {
    const char *dir;
    const moepack_verify_options *options;
    moepack_verify_report *report;
    mpk_meter meter;
    void *index_bytes;
    size_t index_size;
    moepack_index *index;
    moepack_info info;
    mpk_pieces pieces;
    char (*labels)[MOEPACK_LABEL_MAX]; /* of blocks, for progress */
    uint8_t *block_selected;
    uint8_t *expert_selected; /* by id, for the largest E */
    bool everything;
    mpk_check *checks; /* by (shard, offset) */
    size_t check_count;
    mpk_lanes lanes;
    unsigned jobs;
    pthread_mutex_t lock; /* findings and counters */
    mpk_first first[MPK_VERDICTS];
} mpk_verify;

/* Adds one finding; `shard` orders it (UINT32_MAX: the index, first of all). */
void mpk_verify_found(mpk_verify *v, uint32_t shard, const moepack_finding *finding);
/* A finding about a shard as a whole, from an error. */
void mpk_verify_found_error(mpk_verify *v, uint32_t shard, const char *section, uint64_t offset, uint64_t length,
                            const moepack_error *error);
/* Kind and message of a finding from the error that led to it. */
void mpk_verify_explain(const moepack_error *error, moepack_finding *out);
/* A finding with file, and where they apply layer, expert and name, filled in. */
void mpk_verify_describe(const mpk_verify *v, const mpk_check *check, moepack_finding *out);
void mpk_verify_name_shard(const mpk_verify *v, uint32_t shard, moepack_finding *out);
void mpk_verify_count(mpk_verify *v, uint64_t bytes, uint64_t sections);

/* An opened shard. */
typedef struct mpk_verify_shard {
    uint32_t number;
    moepack_shard entry;
    char *path;
    int fd;
    mpk_direct direct;
    uint64_t real_length;
    bool skip; /* no use in looking at its sections */
} mpk_verify_shard;

/* Opens a shard and checks its header page, its identity and its tail. Only failures of this machine are returned. */
moepack_status mpk_verify_shard_open(mpk_verify *v, uint32_t number, mpk_verify_shard *shard, moepack_error *error);
/* Checks that [begin, end) is zero, as far as the file goes. */
void mpk_verify_zero(mpk_verify *v, mpk_lane *lane, const mpk_verify_shard *shard, uint64_t begin, uint64_t end);

/* What is known about the bytes of a check's section. */
void mpk_verify_shape(const mpk_verify *v, const mpk_check *check, mpk_shape *out);
/* Checks one section's content and the padding behind it. */
moepack_status mpk_verify_section(mpk_verify *v, mpk_lane *lane, mpk_verify_shard *shard, mpk_check *check,
                                  moepack_error *error);

/* verify_tail.c: compares a tail whose hash is right with the index, entry by entry. */
void mpk_verify_tail(mpk_verify *v, const mpk_verify_shard *shard, const uint8_t *tail);

/* verify_order.c: storage order of the trunk. `place` of a piece: its position among those of its source file. */
moepack_status mpk_verify_order(mpk_verify *v, const uint32_t *place, moepack_error *error);

/* What concerns the container as a whole (spec/container.md 4.2, 5.3, 5.4, 5.6); everything must have been selected. */
moepack_status mpk_verify_source(mpk_verify *v, moepack_error *error);

#endif
