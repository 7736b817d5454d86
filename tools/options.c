/* One table of options per command: parsing with getopt_long, and the help text. */
#include "cli.h"

#include <ctype.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const cli_option common_options[] = {
    {"json", NULL, CLI_FLAG, offsetof(cli_common, json), "report as one JSON object on stdout", NULL, 0, 0, 0},
    {"progress", NULL, CLI_FLAG, offsetof(cli_common, progress), "show progress also when stderr is no terminal", NULL,
     0, 0, 0},
    {"quiet", NULL, CLI_FLAG, offsetof(cli_common, quiet), "no closing summary, no progress, no warnings", NULL, 0, 0,
     0},
    {0},
};

/* Column in which the help texts of options begin, and the width they are wrapped to. */
enum {
    HELP_COLUMN = 30,
    HELP_WIDTH = 100
};

/* ------------------------------------------------------------------------------------------------- numbers */

static bool read_digits(const char **text, uint64_t *value)
{
    const char *p = *text;
    uint64_t v = 0;
    while (isdigit((unsigned char)*p)) {
        uint64_t digit = (uint64_t)(*p++ - '0');
        if (v > (UINT64_MAX - digit) / 10) return false;
        v = v * 10 + digit;
    }
    if (p == *text) return false;
    *text = p;
    *value = v;
    return true;
}

bool cli_read_number(const char *text, uint64_t *value)
{
    return read_digits(&text, value) && *text == '\0';
}

/* Factor of a unit; 0 for an unknown one. */
static uint64_t unit_factor(const char *unit)
{
    static const struct {
        const char *name;
        uint64_t factor;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"K", 1000},
        {"KB", 1000},
        {"M", 1000000},
        {"MB", 1000000},
        {"G", 1000000000},
        {"GB", 1000000000},
        {"T", UINT64_C(1000000000000)},
        {"TB", UINT64_C(1000000000000)},
        {"Ki", UINT64_C(1) << 10},
        {"KiB", UINT64_C(1) << 10},
        {"Mi", UINT64_C(1) << 20},
        {"MiB", UINT64_C(1) << 20},
        {"Gi", UINT64_C(1) << 30},
        {"GiB", UINT64_C(1) << 30},
        {"Ti", UINT64_C(1) << 40},
        {"TiB", UINT64_C(1) << 40},
    };
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(units[i].name, unit) == 0) return units[i].factor;
    }
    return 0;
}

bool cli_read_size(const char *text, uint64_t *value)
{
    uint64_t whole = 0, fraction = 0, scale = 1;
    if (!read_digits(&text, &whole)) return false;
    if (*text == '.') {
        const char *digits = ++text;
        if (!read_digits(&text, &fraction)) return false;
        /* Six digits: fraction x the largest factor stays below 2^63. */
        if (text - digits > 6) return false;
        for (const char *p = digits; p < text; p++) scale *= 10;
    }
    uint64_t factor = unit_factor(text);
    if (factor == 0 || whole > (UINT64_C(1) << 62) / factor) return false;
    if (scale > 1 && factor == 1) return false;
    *value = whole * factor + fraction * factor / scale;
    return true;
}

/* ------------------------------------------------------------------------------------------------- help */

/* Prints text, its words filled into lines of HELP_WIDTH; the first line begins in `column`, to which the others are
 * indented. */
static void print_wrapped(FILE *stream, const char *text, int column)
{
    int at = column;
    for (text += strspn(text, " \n"); *text != '\0'; text += strspn(text, " \n")) {
        int word = (int)strcspn(text, " \n");
        if (at > column && at + 1 + word > HELP_WIDTH) {
            fprintf(stream, "\n%*s", column, "");
            at = column;
        } else if (at > column) {
            fputc(' ', stream);
            at++;
        }
        fprintf(stream, "%.*s", word, text);
        at += word;
        text += word;
    }
    fputc('\n', stream);
}

static void print_option(FILE *stream, const cli_option *option)
{
    char left[80];
    snprintf(left, sizeof left, "  --%s%s%s", option->name, option->argument ? " " : "",
             option->argument ? option->argument : "");
    if (strlen(left) > HELP_COLUMN - 2) {
        fprintf(stream, "%s\n%*s", left, HELP_COLUMN, "");
    } else {
        fprintf(stream, "%-*s", HELP_COLUMN, left);
    }
    print_wrapped(stream, option->help, HELP_COLUMN);
}

static void print_options(FILE *stream, const cli_option *options)
{
    for (; options->name != NULL; options++) print_option(stream, options);
}

static void print_help(const cli_command *command)
{
    printf("Usage: moepack %s %s%s[OPTION]...\n\n", command->name, command->operands,
           command->operand_count != 0 ? " " : "");
    print_wrapped(stdout, command->about, 0);
    puts("\nOptions:");
    print_options(stdout, command->options);
    print_options(stdout, common_options);
    printf("  %-*s%s\n", HELP_COLUMN - 2, "--help", "print this text");
    if (command->example != NULL) printf("\nExamples:\n%s\n", command->example);
}

int cli_misuse(const cli_command *command, const cli_common *common, const char *fmt, ...)
{
    char message[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    int code = cli_failf(common, MOEPACK_E_USAGE, "%s", message);
    fprintf(stderr, "Usage: moepack %s %s%s[OPTION]...\nTry 'moepack help %s'.\n", command->name, command->operands,
            command->operand_count != 0 ? " " : "", command->name);
    return code;
}

/* ------------------------------------------------------------------------------------------------- parsing */

static size_t option_count(const cli_option *options)
{
    size_t n = 0;
    while (options[n].name != NULL) n++;
    return n;
}

static bool list_add(cli_list *list, const char *item)
{
    const char **items = realloc(list->items, (list->count + 1) * sizeof *items);
    if (items == NULL) return false;
    items[list->count++] = item;
    list->items = items;
    return true;
}

void cli_list_free(cli_list *list)
{
    free(list->items);
    list->items = NULL;
    list->count = 0;
}

static bool find_choice(const char *const *choices, const char *value, unsigned *position)
{
    for (unsigned i = 0; choices[i] != NULL; i++) {
        if (strcmp(choices[i], value) == 0) {
            *position = i;
            return true;
        }
    }
    return false;
}

static void join_choices(const char *const *choices, char *buf, size_t size)
{
    size_t used = 0;
    buf[0] = '\0';
    for (size_t i = 0; choices[i] != NULL && used < size; i++) {
        used += (size_t)snprintf(buf + used, size - used, "%s%s", i > 0 ? ", " : "", choices[i]);
    }
}

/* Stores one value. Returns CLI_GO_ON or the exit code. */
static int set_option(const cli_command *command, const cli_common *common, const cli_option *option, void *arguments,
                      const char *value)
{
    void *target = (char *)arguments + option->target;
    uint64_t number = 0;
    unsigned position = 0;
    char names[160];
    switch (option->kind) {
    case CLI_FLAG:
        *(bool *)target = true;
        break;
    case CLI_TEXT:
        if (value[0] == '\0') return cli_misuse(command, common, "--%s needs a value", option->name);
        *(const char **)target = value;
        break;
    case CLI_NUMBER:
        if (!cli_read_number(value, &number))
            return cli_misuse(command, common, "--%s: '%s' is not a whole number", option->name, value);
        break;
    case CLI_SIZE:
        if (!cli_read_size(value, &number)) {
            return cli_misuse(command, common,
                              "--%s: '%s' is not a size such as 4096, 1.5G (powers of 1000) or 22GiB (powers of 1024)",
                              option->name, value);
        }
        break;
    case CLI_CHOICE:
        if (!find_choice(option->choices, value, &position)) {
            join_choices(option->choices, names, sizeof names);
            return cli_misuse(command, common, "--%s: '%s' is none of %s", option->name, value, names);
        }
        *(unsigned *)target = position;
        break;
    case CLI_LIST:
        if (!list_add(target, value)) return cli_failf(common, MOEPACK_E_IO, "no memory");
        break;
    }
    if (option->kind == CLI_NUMBER || option->kind == CLI_SIZE) {
        if (number < option->min || (option->max != 0 && number > option->max)) {
            if (option->max == 0)
                return cli_misuse(command, common, "--%s: %s is less than %llu", option->name, value,
                                  (unsigned long long)option->min);
            return cli_misuse(command, common, "--%s: %s is not between %llu and %llu", option->name, value,
                              (unsigned long long)option->min, (unsigned long long)option->max);
        }
        *(uint64_t *)target = number;
    }
    if (option->given != 0) *(bool *)((char *)arguments + option->given) = true;
    return CLI_GO_ON;
}

/* getopt_long accepts abbreviations; the argument as it was written tells. */
static bool written_in_full(char **argv, const struct option *option)
{
    const char *written = argv[optind - 1];
    if (option->has_arg == required_argument && optarg == written) written = argv[optind - 2];
    written += 2;
    size_t length = strcspn(written, "=");
    return strlen(option->name) == length && strncmp(written, option->name, length) == 0;
}

/* Copies both tables into getopt's form; the positions of the command's own options come first. */
static void fill_long(struct option *out, const cli_option *options)
{
    for (; options->name != NULL; options++, out++) {
        out->name = options->name;
        out->has_arg = options->kind == CLI_FLAG ? no_argument : required_argument;
        out->flag = NULL;
        out->val = 1;
    }
}

static int parse_loop(const cli_command *command, int argc, char **argv, void *arguments, const struct option *options,
                      size_t own)
{
    cli_common *common = arguments;
    optind = 0; /* glibc: start afresh, also after an earlier command line */
    opterr = 0;
    for (;;) {
        int which = -1;
        int c = getopt_long(argc, argv, ":h", options, &which);
        if (c == -1) return CLI_GO_ON;
        if (c == ':') return cli_misuse(command, common, "%s needs a value", argv[optind - 1]);
        if (c == '?' && optopt == 1) return cli_misuse(command, common, "%s takes no value", argv[optind - 1]);
        if (c == '?' && optopt != 0) return cli_misuse(command, common, "unknown option -%c", optopt);
        if (c == '?') return cli_misuse(command, common, "unknown option %s", argv[optind - 1]);
        if (c == 'h' || c == 2) {
            print_help(command);
            return 0;
        }
        if (!written_in_full(argv, &options[which])) {
            return cli_misuse(command, common, "unknown option %s",
                              optarg == argv[optind - 1] ? argv[optind - 2] : argv[optind - 1]);
        }
        const cli_option *option =
            (size_t)which < own ? &command->options[which] : &common_options[(size_t)which - own];
        int code = set_option(command, common, option, arguments, optarg);
        if (code != CLI_GO_ON) return code;
    }
}

int cli_parse(const cli_command *command, int argc, char **argv, void *arguments, char ***operands)
{
    cli_common *common = arguments;
    size_t own = option_count(command->options), shared = option_count(common_options);
    /* Mistakes before a --json that comes later are reported in JSON too. */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--json") == 0) common->json = true;
    }
    struct option *options = calloc(own + shared + 2, sizeof *options);
    if (options == NULL) return cli_failf(common, MOEPACK_E_IO, "no memory");
    fill_long(options, command->options);
    fill_long(options + own, common_options);
    options[own + shared] = (struct option){"help", no_argument, NULL, 2};

    int code = parse_loop(command, argc, argv, arguments, options, own);
    free(options);
    if (code != CLI_GO_ON) return code;
    int given = argc - optind;
    if (given < (int)command->operand_count)
        return cli_misuse(command, common, "%s needs %s", command->name, command->operands);
    if (given > (int)command->operand_count) {
        return cli_misuse(command, common, "'%s' is one operand too many", argv[optind + (int)command->operand_count]);
    }
    for (int i = optind; i < argc; i++) {
        if (argv[i][0] == '\0')
            return cli_misuse(command, common, "an operand is empty: %s needs %s", command->name, command->operands);
    }
    *operands = argv + optind;
    return CLI_GO_ON;
}
