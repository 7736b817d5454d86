/* The table of policy keys, for encoders and decoders of the POLICIES and FIELDS tables. Internal. */
#ifndef MOEPACK_FORMAT_POLICY_H
#define MOEPACK_FORMAT_POLICY_H

#include "moepack/format.h"

typedef enum mpk_policy_type {
    MPK_POLICY_U64 = 1, /* the numbers are stored in containers (spec/container.md 4.7) */
    MPK_POLICY_F64 = 2,
} mpk_policy_type;

/* Value of an enumeration and its name. */
typedef struct mpk_policy_value {
    uint64_t value;
    const char *name;
} mpk_policy_value;

/* Number of enumeration values of key i, 0 for a plain number; *values receives them. */
size_t mpk_policy_values(size_t i, const mpk_policy_value **values);
/* Number stored for key i, and the type of its value. */
uint16_t mpk_policy_key_id(size_t i);
mpk_policy_type mpk_policy_key_type(size_t i);
const char *mpk_policy_key_name(size_t i);

/* Position in the table of a stored key number; SIZE_MAX if there is none. */
size_t mpk_policy_key_find(uint16_t id);
/* Name of a value of an enumeration held in a policy, found by the key's name; "?" if it has none. */
const char *mpk_policy_value_name(const moepack_policy *policy, const char *key);

/* The 64 bits stored for key i, and back. */
uint64_t mpk_policy_bits(const moepack_policy *policy, size_t i);
void mpk_policy_set_bits(moepack_policy *policy, size_t i, uint64_t bits);
/* Whether key i holds one of its enumeration's values (always true for plain numbers). */
bool mpk_policy_value_known(const moepack_policy *policy, size_t i);

#endif
