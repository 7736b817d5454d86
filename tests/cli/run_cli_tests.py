#!/usr/bin/env python3
"""Runs the command line as a user does and compares stdout, stderr and exit code.

    run_cli_tests.py MOEPACK FIXTURES CASE [--update]

MOEPACK is the binary, FIXTURES the folder with k3_tiny and k3_quant, CASE a module in cases/ whose test_* functions are run in
order, each with a Context. Needs the standard library alone. --update rewrites the expected texts in cases/expect/.
"""
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True  # the source tree stays clean
sys.path.insert(0, HERE)


class Failure(Exception):
    """What a test says when something is not as it should be."""


class Skip(Exception):
    """Something this machine lacks."""


class Result:
    def __init__(self, args, code, out, err):
        self.args, self.code, self.out, self.err = args, code, out, err

    def describe(self):
        return "$ moepack %s\nexit code %d\n--- stdout\n%s\n--- stderr\n%s" % (
            " ".join(self.args), self.code, shorten(self.out), shorten(self.err))

    def json(self):
        """The one JSON object that stdout must be, duplicate keys refused."""
        def no_duplicates(pairs):
            keys = [key for key, _ in pairs]
            if len(keys) != len(set(keys)):
                raise Failure("duplicate keys in JSON: %s\n%s" % (keys, self.describe()))
            return dict(pairs)
        try:
            value = json.loads(self.out, object_pairs_hook=no_duplicates)
        except ValueError as error:
            raise Failure("stdout is not one JSON value (%s)\n%s" % (error, self.describe())) from None
        if not isinstance(value, dict):
            raise Failure("stdout is no JSON object\n" + self.describe())
        return value


def shorten(text, limit=3000):
    return text if len(text) <= limit else text[:limit] + "\n... (%d characters)" % len(text)


def check(condition, message, result=None):
    if not condition:
        raise Failure(message + ("\n" + result.describe() if result is not None else ""))


def equal(found, expected, what, result=None):
    check(found == expected, "%s: found %r, expected %r" % (what, found, expected), result)


class Context:
    def __init__(self, binary, fixtures, folder, update):
        self.binary, self.fixtures, self.folder, self.update = binary, fixtures, folder, update
        self.packs = {}
        self.serial = 0

    # ---- files

    def path(self, name=""):
        """A fresh path in the test's own folder."""
        self.serial += 1
        return os.path.join(self.folder, "%03d-%s" % (self.serial, name))

    def source(self, name="k3_tiny"):
        return os.path.join(self.fixtures, name, "checkpoint")

    def golden(self, name, fixture="k3_tiny"):
        return os.path.join(self.fixtures, fixture, "golden", name)

    def copy_source(self, name="k3_tiny"):
        path = self.path(name)
        shutil.copytree(self.source(name), path)
        return path

    def pack(self, name="k3_tiny", *options):
        """A container made from a fixture; made once, never to be changed."""
        key = (name,) + options
        if key not in self.packs:
            out = self.path(name + ".moepack")
            self.ok(["convert", self.source(name), out, "--quiet"] + list(options))
            self.packs[key] = out
        return self.packs[key]

    def copy_pack(self, name="k3_tiny", *options):
        path = self.path(name + ".moepack")
        shutil.copytree(self.pack(name, *options), path)
        return path

    # ---- running

    @staticmethod
    def environment(extra):
        """This process's, without what would change results or reports."""
        kept = {key: value for key, value in os.environ.items() if key not in ("MOEPACK_KERNELS", "OMP_NUM_THREADS", "POSIXLY_CORRECT")}
        kept.update(extra or {})
        return kept

    def run(self, args, env=None, stdin=b"", timeout=120, **options):
        done = subprocess.run([self.binary] + list(args), env=self.environment(env), input=stdin, timeout=timeout,
                              stdout=options.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE, **options)
        result = Result(list(args), done.returncode, (done.stdout or b"").decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
        # A sanitizer ends the process with 1, which a test may be waiting for.
        check("Sanitizer" not in result.err and "runtime error:" not in result.err, "a sanitizer reported", result)
        check(result.code >= 0, "ended by signal %d" % -result.code, result)
        return result

    def start(self, args, env=None):
        return subprocess.Popen([self.binary] + list(args), env=self.environment(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def ok(self, args, **options):
        """Runs what must work: exit code 0 and no error line."""
        result = self.run(args, **options)
        equal(result.code, 0, "exit code", result)
        check("moepack: error:" not in result.err, "an error line although the exit code is 0", result)
        return result

    def fails(self, args, code, *parts, **options):
        """Runs what must fail with `code` and one error line that has all `parts` in it."""
        result = self.run(args, **options)
        equal(result.code, code, "exit code", result)
        lines = [line for line in result.err.split("\n") if line.startswith("moepack: error: ")]
        equal(len(lines), 1, "number of error lines", result)
        for part in parts:
            check(part in lines[0], "%r is not in the error line" % part, result)
        return result

    def json(self, args, **options):
        """Runs with --json and returns the object; nothing but talk may be on stderr."""
        return self.ok(list(args) + ["--json"], **options).json()

    def error(self, args, code, **options):
        """Runs with --json what must fail; returns the error object."""
        result = self.fails(list(args) + ["--json"], code, **options)
        error = result.json().get("error")
        check(isinstance(error, dict), "no error object", result)
        equal(sorted(error), ["exit_code", "expert", "file", "layer", "message", "offset", "status", "tensor"], "keys of the error", result)
        equal(error["exit_code"], code, "exit_code in JSON", result)
        check(error["message"] and not error["message"].endswith((".", "\n")), "message must be a sentence without its full stop", result)
        return error

    def no_such_folder(self, args):
        """Runs a command on a folder that is not there: incomplete, and the folder is named."""
        missing = self.path("nowhere")
        result = self.run([missing if arg is None else arg for arg in args])
        equal(result.code, 4, "exit code", result)
        check(missing in result.err, "the folder is not named", result)

    # ---- expected texts

    def expect(self, name, text):
        """Compares with cases/expect/NAME.txt. Paths of this run, hashes and times are masked."""
        text = text.replace(self.folder, "TMP").replace(self.fixtures, "FIXTURES")
        text = re.sub(r"TMP/\d+-", "TMP/", text)
        text = re.sub(r"\b[0-9a-f]{32}\b", "HASH128", text)
        text = re.sub(r"\b[0-9a-f]{16}\b", "HASH64", text)
        text = re.sub(r"\b[0-9]+\.[0-9]+ s\b(, [0-9.]+ [kMGT]?B/s)?", "TIME", text)
        path = os.path.join(HERE, "cases", "expect", name + ".txt")
        if self.update:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as out:
                out.write(text)
            return
        with open(path, encoding="utf-8") as stored:
            expected = stored.read()
        if text != expected:
            import difflib
            difference = "\n".join(difflib.unified_diff(expected.split("\n"), text.split("\n"), path, "found", lineterm=""))
            raise Failure("differs from the expected text\n" + difference)


def load_case(name):
    path = os.path.join(HERE, "cases", name + ".py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = [(key, value) for key, value in vars(module).items() if key.startswith("test_") and callable(value)]
    if not tests:
        raise SystemExit("no tests in " + path)
    return tests


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--update"]
    if len(arguments) != 3:
        print(__doc__)
        return 2
    binary, fixtures, case = arguments
    if not os.access(binary, os.X_OK):
        raise SystemExit("no such program: " + binary)
    failed = skipped = 0
    tests = load_case(case)
    with tempfile.TemporaryDirectory(prefix="moepack-cli-") as folder:
        context = Context(os.path.abspath(binary), os.path.abspath(fixtures), folder, "--update" in sys.argv)
        for name, test in tests:
            started = time.monotonic()
            try:
                test(context)
                verdict = "ok"
            except Skip as reason:
                skipped += 1
                verdict = "SKIP: %s" % reason
            except Failure as failure:
                failed += 1
                verdict = "FAILED: %s" % failure
            except Exception:  # a test that breaks is a failed test; the others still run
                failed += 1
                verdict = "BROKEN: " + traceback.format_exc()
            print("%-55s %5.2f s  %s" % (name, time.monotonic() - started, verdict), flush=True)
    print("%d tests, %d failed, %d skipped" % (len(tests), failed, skipped))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.modules["run_cli_tests"] = sys.modules["__main__"]  # the cases import this module: one Failure, not two
    sys.exit(main())
