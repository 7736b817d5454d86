/* Options of a subcommand from one table, which also prints the help. */
#ifndef MOEPACK_TOOLS_OPTIONS_H
#define MOEPACK_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Options that every command has. The first member of every command's arguments. */
typedef struct cli_common {
    bool json;     /* exactly one JSON object on stdout */
    bool quiet;    /* errors and asked-for data only */
    bool progress; /* progress also when stderr is no terminal */
} cli_common;

/* Several values of an option that may be repeated. */
typedef struct cli_list {
    const char **items;
    size_t count;
} cli_list;

typedef enum cli_kind {
    CLI_FLAG,   /* bool */
    CLI_TEXT,   /* const char *; NULL when not given */
    CLI_NUMBER, /* uint64_t, decimal */
    CLI_SIZE,   /* uint64_t, bytes: "4096", "1.5G", "22GiB" */
    CLI_CHOICE, /* unsigned: position in `choices` */
    CLI_LIST    /* cli_list: may be repeated */
} cli_kind;

typedef struct cli_option {
    const char *name;     /* long name without dashes; NULL ends the table */
    const char *argument; /* "BYTES" in the help; NULL for flags */
    cli_kind kind;
    size_t target; /* offsetof in the command's arguments */
    const char *help;
    const char *const *choices; /* CLI_CHOICE: names, NULL at the end */
    uint64_t min, max;          /* CLI_NUMBER, CLI_SIZE: allowed values; max 0: none */
    size_t given;               /* offsetof a bool that is set when the option occurs; 0: none */
} cli_option;

typedef struct cli_command {
    const char *name;
    const char *operands;   /* "SRC OUT" */
    unsigned operand_count; /* exactly this many */
    const char *about;      /* what a user must know; filled into lines by the help */
    const cli_option *options;
    const char *example; /* lines after "Examples:"; NULL: none */
} cli_command;

#define CLI_GO_ON (-1)

/* Reads argv into `arguments`, a struct that starts with a cli_common and holds the defaults; argv is permuted, and the
 * operands are the last operand_count entries of it, from *operands on. Returns CLI_GO_ON, or the exit code: 0 after
 * --help, 2 after a mistake, which has been reported. Options must be written out in full: an abbreviation that works
 * today could become ambiguous with the next version. */
int cli_parse(const cli_command *command, int argc, char **argv, void *arguments, char ***operands);

/* Reports a wrong use that a table cannot express ("--rank needs --ranks"); returns 2. */
int cli_misuse(const cli_command *command, const cli_common *common, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

void cli_list_free(cli_list *list);

/* Strict: digits only, no sign, no blanks; false when it does not fit. */
bool cli_read_number(const char *text, uint64_t *value);
/* Digits, a fraction of up to six digits, and a unit: none or B, K KB M MB G GB T TB (powers of 1000), Ki KiB ...
 * (powers of 1024). */
bool cli_read_size(const char *text, uint64_t *value);

#endif
