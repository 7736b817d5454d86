/* moepack families: what convert reads, from the library's own table. */
#include "cli.h"

#include <string.h>

typedef struct families_args {
    cli_common common;
} families_args;

static const cli_option options[] = {{0}};

static const cli_command command = {
    .name = "families",
    .operands = "",
    .operand_count = 0,
    .about =
        "Lists the model families that convert reads: the model_type of their config.json, how their experts may be "
        "stored, and what conversion and layer results were checked against. Anything else is refused with exit "
        "code 5 and the name of what was found.",
    .options = options,
    .example = "  moepack families\n  moepack families --json",
};

typedef const char *(*part_of)(size_t family, size_t part);

static json_t *json_parts(part_of part, size_t family)
{
    json_t *list = json_array();
    const char *text;
    for (size_t i = 0; list != NULL && (text = part(family, i)) != NULL; i++) {
        if (json_array_append_new(list, cli_json_text(text, strlen(text))) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static int print_json(const cli_common *common)
{
    json_t *list = json_array();
    for (size_t i = 0; list != NULL && moepack_family_name(i) != NULL; i++) {
        json_t *family = json_pack("{s:s, s:o, s:s, s:o, s:s}", "name", moepack_family_name(i), "model_types",
                                   json_parts(moepack_family_type, i), "about", moepack_family_about(i), "forms",
                                   json_parts(moepack_family_form, i), "tested", moepack_family_tested(i));
        if (family == NULL || json_array_append_new(list, family) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return cli_print_json(common, list != NULL ? json_pack("{s:o}", "families", list) : NULL);
}

static void print_parts(const char *title, part_of part, size_t family)
{
    const char *text;
    printf("  %-12s", title);
    for (size_t i = 0; (text = part(family, i)) != NULL; i++) printf("%s%s", i != 0 ? ", " : "", text);
    putchar('\n');
}

int cmd_families(int argc, char **argv)
{
    families_args args = {0};
    char **operands = NULL;
    int code = cli_parse(&command, argc, argv, &args, &operands);
    if (code != CLI_GO_ON) return code;
    if (args.common.json) return print_json(&args.common);
    for (size_t i = 0; moepack_family_name(i) != NULL; i++) {
        printf("%s%s\n  %s\n", i != 0 ? "\n" : "", moepack_family_name(i), moepack_family_about(i));
        print_parts("model_type", moepack_family_type, i);
        print_parts("experts as", moepack_family_form, i);
        printf("  %-12s%s\n", "tested", moepack_family_tested(i));
    }
    return 0;
}
