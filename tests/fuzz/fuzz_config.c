/* Any bytes as a config.json: understood or refused with a reason, and what is understood is a valid policy. */
#include "config.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define REQUIRE(condition)         \
    do {                           \
        if (!(condition)) abort(); \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mpk_config config;
    moepack_error error = {.status = MOEPACK_OK};
    moepack_status status = mpk_config_read((const char *)data, size, "config.json", &config, &error);
    if (status != MOEPACK_OK) {
        REQUIRE(status == error.status && error.message[0] != 0);
        REQUIRE(status == MOEPACK_E_CORRUPT || status == MOEPACK_E_INCOMPLETE || status == MOEPACK_E_UNSUPPORTED ||
                status == MOEPACK_E_USAGE);
        return 0;
    }
    const moepack_policy *p = &config.policy;
    REQUIRE(config.family != NULL && config.model_type[0] != 0);
    REQUIRE(moepack_policy_check(p, config.size[MPK_E], NULL) == MOEPACK_OK);
    REQUIRE(p->top_k >= 1 && p->top_k <= config.size[MPK_E]);
    REQUIRE(p->hidden == config.size[MPK_H] && p->expert_input == config.size[MPK_L] &&
            p->shared_width == config.size[MPK_S]);
    REQUIRE(p->latent || p->expert_input == p->hidden);
    REQUIRE(isfinite(p->scale) && isfinite(p->situ_beta) && p->situ_beta > 0 && p->situ_linear_beta >= 0);
    const mpk_layers *main = &config.stack[MOEPACK_STACK_MAIN];
    uint64_t first = mpk_layers_next(main, 0);
    if (main->count == 0) return 0; /* an encoder and a decoder */
    REQUIRE(first < main->count && mpk_layers_is_moe(main, first) && mpk_layers_moe_count(main) >= 1);
    return 0;
}
