/* XXH3 of the library's header, compiled for AVX-512. The whole file is: see CMakeLists.txt. Nothing but static
 * functions and the table may stand here or come from the headers, or the linker could take code for AVX-512 into other
 * files. */
#if defined(__x86_64__)
#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX512
/* Ahead of the reads, in bytes. xxhash.h takes 320 or 512; from memory, one thread of a Sapphire Rapids server gained
 * 15 to 30 % with 2048, and nothing changed for data in a cache. */
#define XXH_PREFETCH_DIST 2048
#define MPK_HASH_TABLE mpk_hash_avx512
#define MPK_HASH_NAME "avx512"
#include "hash_body.h"
#else
typedef int mpk_hash_avx512_not_here; /* ISO C wants a declaration in every file */
#endif
