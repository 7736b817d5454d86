/* The moepack command line: finds the subcommand, and checks in the end that everything printed has arrived. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

typedef struct subcommand {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} subcommand;

static int cmd_help(int argc, char **argv);

static const subcommand commands[] = {
    {"convert", cmd_convert, "published checkpoint into a container"},
    {"inspect", cmd_inspect, "what is in a container, from its index alone"},
    {"verify", cmd_verify, "check every byte of a container, without its source"},
    {"export", cmd_export, "container back into the published files, byte for byte"},
    {"plan", cmd_plan, "which bytes each rank will read"},
    {"run", cmd_run, "load one rank's experts and run a MoE layer"},
    {"route", cmd_route, "which experts tokens select, and what balancing does to the load"},
    {"bench", cmd_bench, "measure, every figure beside its limit"},
    {"synth", cmd_synth, "make a checkpoint in a published layout with random weights"},
    {"families", cmd_families, "which model families convert reads"},
    {"help", cmd_help, "help on a command"},
};
enum {
    COMMAND_COUNT = sizeof commands / sizeof commands[0]
};

static const subcommand *find_command(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    }
    return NULL;
}

static void list_commands(FILE *stream)
{
    fputs("Usage: moepack COMMAND ...\n\nCommands:\n", stream);
    for (size_t i = 0; i < COMMAND_COUNT; i++) fprintf(stream, "  %-10s%s\n", commands[i].name, commands[i].about);
    fputs("\n'moepack help COMMAND' tells more. 'moepack --version' prints the version.\n", stream);
}

static int print_overview(void)
{
    puts("moepack: converts published Mixture-of-Experts checkpoints into a container whose unit is one expert,\n"
         "and runs the MoE layer from it.\n");
    list_commands(stdout);
    puts("\nExit codes: 0 ok, 1 I/O or other failure, 2 usage, 3 corrupt data, 4 incomplete, 5 unsupported,\n"
         "6 refused (would overwrite, not enough disk or memory), 130 interrupted.\n\nModel families that convert "
         "reads:");
    for (size_t i = 0; moepack_family_name(i) != NULL; i++)
        printf("  %-20s%s\n", moepack_family_name(i), moepack_family_about(i));
    return 0;
}

/* A mistake before any subcommand could read its options. */
static int misuse(int argc, char **argv, const char *message)
{
    cli_common common = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) common.json = true;
    }
    int code = cli_failf(&common, MOEPACK_E_USAGE, "%s", message);
    list_commands(stderr);
    return code;
}

static int unknown_command(int argc, char **argv)
{
    char message[200];
    snprintf(message, sizeof message, "unknown command '%.100s'", argv[1]);
    return misuse(argc, argv, message);
}

static int cmd_help(int argc, char **argv)
{
    if (argc < 2) return print_overview();
    const subcommand *command = find_command(argv[1]);
    if (argc > 2) return misuse(argc, argv, "help takes one command");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return print_overview();
    if (command == NULL) return unknown_command(argc, argv);
    if (command->run == cmd_help) return print_overview();
    char help[] = "--help";
    char *arguments[] = {argv[1], help, NULL};
    return command->run(2, arguments);
}

/* A command must never get 0, 1 or 2 for a file of its own when the caller closed them: data would go into a container.
 * The stand-ins fail when they are used (written to, read from) as the closed descriptor would. */
static void reserve_standard_streams(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) (void)!open("/dev/null", modes[fd]);
    }
}

/* Data that did not arrive is a failure, even if everything else went well: a full disk, a closed pipe. */
static int close_output(int code)
{
    errno = 0;
    bool failed = ferror(stdout) != 0;
    if (fflush(stdout) != 0) failed = true;
    if (!failed) return code;
    fprintf(stderr, "moepack: error: standard output: %s\n", errno != 0 ? strerror(errno) : "write error");
    return code == 0 ? (int)MOEPACK_E_IO : code;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) return misuse(argc, argv, "no command given");
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("moepack %s (container format %d.%d)\n", moepack_version(), MOEPACK_FORMAT_MAJOR, MOEPACK_FORMAT_MINOR);
        return 0;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return print_overview();
    const subcommand *command = find_command(argv[1]);
    if (command == NULL) return unknown_command(argc, argv);
    return command->run(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    reserve_standard_streams();
    signal(SIGPIPE, SIG_IGN); /* a closed pipe shows as a write error */
    signal(SIGXFSZ, SIG_IGN); /* so does a file beyond `ulimit -f` */
    cli_catch_signals();
    return close_output(dispatch(argc, argv));
}
