/* XXH3 of the installed library. */
#define MPK_HASH_TABLE mpk_hash_library
#define MPK_HASH_NAME "library"
#include "hash_body.h"
