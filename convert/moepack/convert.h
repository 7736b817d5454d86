/* moepack/convert.h - published checkpoints into containers and back.
 *
 * convert, verify and export of whole containers; the safetensors reader and writer they use are public, because `run`
 * reads its input and writes its result through them.
 *
 * Nothing here prints or exits. A source is only ever opened for reading. Output appears under its final name only when
 * it is complete and synced.
 */
#ifndef MOEPACK_CONVERT_H
#define MOEPACK_CONVERT_H

#include "moepack/format.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------- safetensors */

typedef struct moepack_safetensors moepack_safetensors;

/* One tensor of an opened file. Pointers live as long as the handle. */
typedef struct moepack_safetensors_tensor {
    const char *name;
    moepack_dtype dtype;
    uint32_t rank;
    const uint64_t *dims; /* rank values */
    uint64_t offset;      /* of its data, from the start of the file */
    uint64_t length;      /* bytes */
} moepack_safetensors_tensor;

/* Opens a file and checks its whole header: length word at most 100,000,000 and inside the file, UTF-8 JSON object, no
 * duplicate keys, known dtypes, shapes times width = data_offsets, data contiguous without holes or overlap, ending
 * exactly at the end of the file. Errors: CORRUPT, INCOMPLETE (missing file, or shorter than its header says),
 * UNSUPPORTED (unknown dtype). Tensors are numbered in order of offset (empty ones by name among equals). */
MOEPACK_API moepack_status moepack_safetensors_open(const char *path, moepack_safetensors **out, moepack_error *error);
MOEPACK_API void moepack_safetensors_close(moepack_safetensors *file);
MOEPACK_API size_t moepack_safetensors_count(const moepack_safetensors *file);
MOEPACK_API void moepack_safetensors_get(const moepack_safetensors *file, size_t i, moepack_safetensors_tensor *out);
/* Index of a tensor by name, SIZE_MAX if there is none or `name` is NULL. O(log n). */
MOEPACK_API size_t moepack_safetensors_find(const moepack_safetensors *file, const char *name);
/* Value of a __metadata__ key, NULL if there is none. */
MOEPACK_API const char *moepack_safetensors_metadata(const moepack_safetensors *file, const char *key);
/* Length of length word plus header, i.e. where data begins. */
MOEPACK_API uint64_t moepack_safetensors_data_start(const moepack_safetensors *file);
/* Reads bytes [begin, begin + size) of tensor i into buf. Threads may read at the same time. */
MOEPACK_API moepack_status moepack_safetensors_read(const moepack_safetensors *file, size_t i, uint64_t begin,
                                                    void *buf, size_t size, moepack_error *error);

/* Writer: declare all tensors, then append their data in that order, then finish. The file is written under a temporary
 * name beside `path` and appears under its own name, synced, on finish. */
typedef struct moepack_safetensors_writer moepack_safetensors_writer;
/* MOEPACK_E_REFUSED if `path` exists and `overwrite` is false, or it is anything but a regular file. */
MOEPACK_API moepack_status moepack_safetensors_create(const char *path, bool overwrite,
                                                      moepack_safetensors_writer **out, moepack_error *error);
MOEPACK_API moepack_status moepack_safetensors_add_metadata(moepack_safetensors_writer *writer, const char *key,
                                                            const char *value, moepack_error *error);
MOEPACK_API moepack_status moepack_safetensors_add(moepack_safetensors_writer *writer, const char *name,
                                                   moepack_dtype dtype, uint32_t rank, const uint64_t *dims,
                                                   moepack_error *error);
/* Next bytes of data, any split; the first call writes the header and ends the declarations. */
MOEPACK_API moepack_status moepack_safetensors_append(moepack_safetensors_writer *writer, const void *data, size_t size,
                                                      moepack_error *error);
/* MOEPACK_E_USAGE if fewer bytes than declared were appended. Frees the writer in every case; on failure nothing
 * remains. */
MOEPACK_API moepack_status moepack_safetensors_finish(moepack_safetensors_writer *writer, moepack_error *error);
/* Gives up: removes the temporary file, frees the writer. NULL is fine. */
MOEPACK_API void moepack_safetensors_abort(moepack_safetensors_writer *writer);

/* ------------------------------------------------------------------------------------------------- progress, cancel */

typedef struct moepack_progress {
    const char *stage; /* "read headers", "convert", "verify" ... */
    const char *label; /* current MoE block or file, "" if none */
    uint64_t done_bytes, total_bytes;
} moepack_progress;

/* Called from worker threads, one at a time, at most about 6 times a second and once at the end. Warnings come one line
 * each, through `warn`. `cancel` is polled: set it to non-zero (a signal handler may) and the call ends with
 * MOEPACK_E_INTERRUPTED. */
typedef struct moepack_callbacks {
    void (*progress)(void *user, const moepack_progress *progress);
    void (*warn)(void *user, const char *line);
    void *user;
    const volatile int *cancel;
} moepack_callbacks;

/* ------------------------------------------------------------------------------------------------- convert */

typedef enum moepack_shard_by {
    MOEPACK_SHARD_BY_EXPERT = 0,
    MOEPACK_SHARD_BY_LAYER = 1,
    MOEPACK_SHARD_BY_SIZE = 2
} moepack_shard_by;

typedef struct moepack_convert_options {
    size_t size;         /* sizeof(moepack_convert_options) */
    const char *layers;  /* "1-3,7,encoder.1"; NULL: all. Parsed against the source's blocks */
    const char *experts; /* "0-13,20"; NULL: all */
    moepack_shard_by shard_by;
    uint64_t shard_size; /* bytes; 0: 24e9 */
    moepack_layout layout;
    moepack_codec codec;
    bool moe_only;             /* leave out what belongs to no MoE block */
    const char *const *policy; /* "KEY=VALUE" overrides, recorded as such */
    size_t policy_count;
    unsigned jobs;         /* 0: min(4 x cores within the cgroup limit, 8) */
    bool verify;           /* read everything back before publishing */
    bool dry_run;          /* plan and check only; nothing is written */
    bool overwrite;        /* replace an existing OUT */
    bool allow_nan_scales; /* archive E8M0 scale bytes of 255 instead of stopping */
    bool quantize_mxfp4; /* encode expert weights of more bits as MXFP4 (spec/numerics.md): no longer the source's bits
                          */
    bool force_requantize; /* also those that have 4 bits already */
    moepack_callbacks callbacks;
} moepack_convert_options;

/* What was (or would be) done. */
typedef struct moepack_convert_report {
    uint64_t source_bytes;     /* of the files read */
    uint64_t written_bytes;    /* of the container, all files */
    uint64_t experts, tensors; /* records; source tensors stored */
    uint64_t shards;
    uint64_t resumed_bytes; /* always 0 in this version: a left-over .partial is refused */
    uint64_t needed_disk_bytes, available_disk_bytes, peak_memory_bytes;
    uint64_t warnings;
    double seconds;
    moepack_hash128 root_hash, canonical_root;
    /* Why something was read or written through the page cache instead of directly: a file and a reason. "": nothing
     * was. What is never direct does not count: headers, the index, the rest of a file's last page. */
    char io_reason[160];
} moepack_convert_report;

MOEPACK_API void moepack_convert_options_init(moepack_convert_options *options);

/* SRC (directory with safetensors and config.json) to the container directory OUT. Work goes to OUT.partial, which must
 * not exist; the index is written last, everything is synced, then OUT.partial is renamed. On failure OUT.partial is
 * removed, unless it was there before. Of several conversions to one OUT at the same time one succeeds and the others
 * are REFUSED. An OUT that is replaced is kept as OUT.old until the new one is in place. Errors: USAGE (OUT is empty or
 * ends in .partial or .old), REFUSED (OUT or OUT.partial exists, not enough disk), INCOMPLETE (missing shard or
 * expert), CORRUPT (source breaks a rule, NaN scale, changed while read), UNSUPPORTED (model type, storage form, config
 * value). */
MOEPACK_API moepack_status moepack_convert(const char *src, const char *out, const moepack_convert_options *options,
                                           moepack_convert_report *report, moepack_error *error);

/* Families this build converts: name, one-line description. NULL past the end. */
MOEPACK_API const char *moepack_family_name(size_t i);
MOEPACK_API const char *moepack_family_about(size_t i);
/* Model type t that leads to family i, storage form f of its experts; NULL past the end. */
MOEPACK_API const char *moepack_family_type(size_t i, size_t t);
MOEPACK_API const char *moepack_family_form(size_t i, size_t f);
/* What conversion and layer results of the family were checked against. */
MOEPACK_API const char *moepack_family_tested(size_t i);

/* ------------------------------------------------------------------------------------------------- verify */

/* One thing that is wrong. `layer` "" and `expert` -1 where they do not apply. */
typedef struct moepack_finding {
    char file[256], layer[32], section[192];
    int64_t expert;
    uint64_t offset, length;
    char expected[40], found[40]; /* hashes, or words such as "zero padding" */
    char message[256];
    bool missing;     /* a file that is not there or shorter than recorded, rather than damage */
    bool unsupported; /* written by another version of the format: this program cannot tell whether it is sound */
    bool unreadable;  /* there, but this machine cannot open or read it; says nothing about its content */
} moepack_finding;

typedef struct moepack_verify_options {
    size_t size;                  /* sizeof(moepack_verify_options) */
    const char *layers, *experts; /* as for convert; NULL: all, trunk included */
    uint32_t rank, ranks;         /* ranks > 0: only the experts of this rank, linear placement */
    unsigned jobs;
    moepack_callbacks callbacks;
    void (*finding)(void *user, const moepack_finding *finding); /* each, as it is found; one at a time; may be NULL */
} moepack_verify_options;

typedef struct moepack_verify_report {
    uint64_t checked_bytes, checked_sections;
    uint64_t bad, missing, unsupported, unreadable; /* findings of each kind */
    double seconds;
    char io_reason[160]; /* as in moepack_convert_report */
} moepack_verify_report;

MOEPACK_API void moepack_verify_options_init(moepack_verify_options *options);

/* Checks every selected byte of a container without its source: headers, tails, stored and canonical hashes, padding
 * (between sections, and the padding elements of weight order), and, all selected, file hashes, canonical_root, plan_id
 * and the counts of INFO. Goes on after a finding. Returns OK when there is none, CORRUPT when anything is bad, else
 * INCOMPLETE when anything is missing (PACK itself included), else IO when a file is there but cannot be opened or read
 * (no permission, a link in circles, no regular file, a failing disk), else UNSUPPORTED: a shard of another format
 * version or with unknown must-understand bits, whose content is then not looked at, or a section of an unknown codec,
 * of which the stored hash alone is checked. `error` then describes the first finding of the kind that decided. */
MOEPACK_API moepack_status moepack_verify(const char *pack, const moepack_verify_options *options,
                                          moepack_verify_report *report, moepack_error *error);

/* ------------------------------------------------------------------------------------------------- export */

typedef struct moepack_export_options {
    size_t size;    /* sizeof(moepack_export_options) */
    bool overwrite; /* replace an existing OUT_DIR */
    unsigned jobs;
    moepack_callbacks callbacks;
} moepack_export_options;

typedef struct moepack_export_report {
    uint64_t files, written_bytes;
    double seconds;
} moepack_export_report;

MOEPACK_API void moepack_export_options_init(moepack_export_options *options);

/* Gives back the source directory: every file byte for byte, each checked against its file hash before it is published.
 * Work goes to OUT_DIR.partial. A subset container is UNSUPPORTED in this version. */
MOEPACK_API moepack_status moepack_export(const char *pack, const char *out_dir, const moepack_export_options *options,
                                          moepack_export_report *report, moepack_error *error);

#ifdef __cplusplus
}
#endif
#endif
