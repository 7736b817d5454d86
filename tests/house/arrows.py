#!/usr/bin/env python3
"""Who may include whom (README of the tree: CONTRIBUTING.md). Fails with one line per arrow that points the wrong way."""
import os
import re
import sys

ROOT = sys.argv[1]

# folder -> (own folders whose headers it may include, libraries, headers it must not use)
RULES = {
    "format": (["format"], {"xxhash.h", "zstd.h"},
               {"fcntl.h", "unistd.h", "pthread.h", "sys/mman.h", "sys/stat.h", "dirent.h"}),
    "format/io": (["format", "format/io"], set(), set()),
    "convert": (["format", "format/io", "convert"], {"jansson.h"}, set()),
    "runtime": (["format", "format/io", "runtime", "runtime/cpu"], {"jansson.h", "omp.h"}, set()),
    "tools": (["tools", "tools/bench", "tools/synth"], {"jansson.h", "omp.h"}, set()),
}
PUBLIC = {"moepack/format.h": "format", "moepack/convert.h": "convert", "moepack/runtime.h": "runtime"}
MAY_USE_PUBLIC = {"format": {"format"}, "format/io": {"format"}, "convert": {"format", "convert"},
                  "runtime": {"format", "runtime"}, "tools": {"format", "convert", "runtime"}}
SYSTEM = re.compile(r"^(sys/|linux/|arpa/)?[a-z0-9_]+\.h$")
MAX_LINES = 800


def rule_of(folder):
    while folder:
        if folder in RULES:
            return folder
        folder = os.path.dirname(folder)
    return None


def own_header(path, name):
    """Folder that holds the header `name` as included from `path`."""
    here = os.path.dirname(path)
    for base in (here, "format", "convert", "runtime", "tools", "."):
        candidate = os.path.normpath(os.path.join(base, name))
        if os.path.exists(os.path.join(ROOT, candidate)):
            return os.path.dirname(candidate), candidate
    return None, None


def check(path, problems):
    rule = rule_of(os.path.dirname(path))
    allowed, libraries, banned = RULES[rule]
    with open(os.path.join(ROOT, path), encoding="utf-8") as source:
        lines = source.read().split("\n")
    if len(lines) - 1 > MAX_LINES:
        problems.append(f"{path}: {len(lines) - 1} lines, the limit is {MAX_LINES}")
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not match:
            continue
        quote, name = match.groups()
        where = f"{path}:{number}: includes {name}"
        if name in PUBLIC:
            if PUBLIC[name] not in MAY_USE_PUBLIC[rule]:
                problems.append(f"{where}: {rule} must not use {PUBLIC[name]}")
        elif quote == "<":
            if name in banned:
                problems.append(f"{where}: {rule} works on memory only")
            elif not SYSTEM.match(name) or name in {"jansson.h", "xxhash.h", "zstd.h", "omp.h"}:
                if name not in libraries:
                    problems.append(f"{where}: {rule} does not use this library")
        else:
            folder, found = own_header(path, name)
            if folder is None:
                if name.startswith("emulate_") or "emulate" in line:
                    continue  # test builds put their emulation of an instruction set on the include path
                problems.append(f"{where}: no such header in the tree")
            elif folder not in allowed:
                problems.append(f"{where}: {rule} must not use {os.path.dirname(found) or found}")


def main():
    problems, count = [], 0
    for top in ("format", "convert", "runtime", "tools"):
        for folder, _, files in os.walk(os.path.join(ROOT, top)):
            for name in sorted(files):
                if name.endswith((".c", ".h", ".cu", ".cuh")):
                    check(os.path.relpath(os.path.join(folder, name), ROOT), problems)
                    count += 1
    for problem in problems:
        print(problem)
    print(f"{count} files checked, {len(problems)} problems")
    return 1 if problems or count == 0 else 0


sys.exit(main())
