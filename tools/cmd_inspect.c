/* moepack inspect: what is in a container. */
#include "inspect.h"

#include <stdlib.h>

#define AT(field) offsetof(inspect_args, field)

static const cli_option options[] = {
    {"shards", NULL, CLI_FLAG, AT(shards), "list the shard files", NULL, 0, 0, 0},
    {"layer", "L", CLI_TEXT, AT(layer),
     "one MoE layer: its number, 'encoder.1' where a model has two stacks, or the prefix of its tensor names", NULL, 0,
     0, 0},
    {"expert", "E", CLI_NUMBER, AT(expert), "with --layer: one expert, where it lies and its hashes", NULL, 0,
     UINT32_MAX - 1, AT(expert_given)},
    {"tensors", NULL, CLI_FLAG, AT(tensors), "list the tensors that belong to no expert", NULL, 0, 0, 0},
    {"policy", NULL, CLI_FLAG, AT(policy), "routing policies, in words and field by field", NULL, 0, 0, 0},
    {"stats", NULL, CLI_FLAG, AT(stats),
     "bytes by role and plane; with --layer also the distribution of the experts' scales, read from the shards", NULL,
     0, 0, 0},
    {0},
};

static const cli_command command = {
    .name = "inspect",
    .operands = "PACK",
    .operand_count = 1,
    .about = "Prints what the container PACK holds. Needs its index.mpk alone, which is checked against its "
             "hash; shards are not opened, except for --stats of a layer or expert.",
    .options = options,
    .example = "  moepack inspect k3.moepack\n"
               "  moepack inspect k3.moepack --layer 17 --expert 300 --json",
};

void inspect_expert_record(const inspect_view *view, moepack_record *record, uint32_t *first_desc, uint32_t *sections)
{
    moepack_block block;
    moepack_index_block(view->index, view->block, &block);
    moepack_index_record(view->index, block.first_record + view->expert, record);
    moepack_index_schema(view->index, record->schema, first_desc, sections);
}

/* Checks that --expert exists and is stored. */
static int select_expert(inspect_view *view)
{
    const inspect_args *args = view->args;
    char label[MOEPACK_LABEL_MAX];
    moepack_block block;
    moepack_record record;
    moepack_index_block(view->index, view->block, &block);
    moepack_index_label(view->index, view->block, label);
    if (args->expert >= block.experts) {
        return cli_failf(&args->common, MOEPACK_E_USAGE, "--expert %llu: layer %s of %.200s has experts 0 to %u",
                         (unsigned long long)args->expert, label, view->path, block.experts - 1);
    }
    view->expert = (uint32_t)args->expert;
    moepack_index_record(view->index, block.first_record + view->expert, &record);
    if (record.shard == MOEPACK_NO_SHARD) {
        return cli_failf(&args->common, MOEPACK_E_INCOMPLETE,
                         "layer %s, expert %u is not in %.200s, which holds a part of its source", label, view->expert,
                         view->path);
    }
    return CLI_GO_ON;
}

static int show(inspect_view *view)
{
    inspect_stats stats;
    moepack_error error = {0};
    if (view->args->stats) {
        if (inspect_gather_stats(view, &stats, &error) != MOEPACK_OK) return cli_fail(&view->args->common, &error);
        view->stats = &stats;
    }
    if (view->args->common.json) return cli_print_json(&view->args->common, inspect_json(view));
    inspect_print_text(view);
    return 0;
}

static int inspect(const inspect_args *args, const char *path)
{
    moepack_pack *pack = NULL;
    moepack_error error = {0};
    if (moepack_open(path, &pack, &error) != MOEPACK_OK) return cli_fail(&args->common, &error);
    inspect_view view = {
        .args = args,
        .pack = pack,
        .path = path,
        .index = moepack_pack_index(pack),
        .block = INSPECT_NONE,
        .expert = INSPECT_NONE,
    };
    int code = CLI_GO_ON;
    moepack_index_info(view.index, &view.info);
    if (!summary_create(view.index, path, &view.summary)) code = cli_failf(&args->common, MOEPACK_E_IO, "no memory");
    if (code == CLI_GO_ON && args->layer != NULL) {
        view.block = summary_find_block(&args->common, pack, args->layer);
        if (view.block == MOEPACK_NO_BLOCK) code = MOEPACK_E_USAGE;
    }
    if (code == CLI_GO_ON && args->expert_given) code = select_expert(&view);
    if (code == CLI_GO_ON) code = show(&view);
    summary_free(&view.summary);
    moepack_close(pack);
    return code;
}

int cmd_inspect(int argc, char **argv)
{
    inspect_args args = {0};
    char **operands = NULL;
    int code = cli_parse(&command, argc, argv, &args, &operands);
    if (code != CLI_GO_ON) return code;
    if ((int)args.shards + (int)args.tensors + (int)args.policy + (int)(args.layer != NULL) > 1) {
        return cli_misuse(&command, &args.common,
                          "--shards, --layer, --tensors and --policy are different views: give one of them");
    }
    if (args.expert_given && args.layer == NULL) return cli_misuse(&command, &args.common, "--expert needs --layer");
    return inspect(&args, operands[0]);
}
